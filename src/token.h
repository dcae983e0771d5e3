/*-------------------------------------------------------------------------
 *
 * token.h
 *	  Fencing tokens: numbers that rise with every grant.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_TOKEN_H
#define FENCED_LOCK_TOKEN_H

extern int64 fl_token_draw(void);
extern int64 fl_token_raise(int64 at_least);
extern int64 fl_token_last(void);

#endif							/* FENCED_LOCK_TOKEN_H */
