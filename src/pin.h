/*-------------------------------------------------------------------------
 *
 * pin.h
 *	  Who may pin a key.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_PIN_H
#define FENCED_LOCK_PIN_H

extern void fl_pin(const text *key, int64 token);

#endif							/* FENCED_LOCK_PIN_H */
