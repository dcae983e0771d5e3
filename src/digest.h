/*-------------------------------------------------------------------------
 *
 * digest.h
 *	  SHA-256, as PostgreSQL's own library computes it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_DIGEST_H
#define FENCED_LOCK_DIGEST_H

#include "common/sha2.h"

extern void fl_digest(const void *salt, size_t salt_length,
					  const void *data, size_t data_length,
					  uint8 digest[PG_SHA256_DIGEST_LENGTH]);

#endif							/* FENCED_LOCK_DIGEST_H */
