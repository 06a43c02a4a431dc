/* base/scratch.h: unfinished files that must not stay behind when the program is told to stop.
 *
 * Who writes a file under a passing name adds it here until it has its own. A handler of SIGINT and its like (the
 * command line has one) removes what is left; everything else of the process may then end as it does.
 * *lock-free*: a handler runs in the midst of anything.
 */
#ifndef OB_BASE_SCRATCH_H
#define OB_BASE_SCRATCH_H

/* A ticket for ob_scratch_drop; -1 when there is no room left (the file then stays, should it come to that). */
int ob_scratch_add(const char *path);
/* The file has its name, or is gone. -1 is allowed. */
void ob_scratch_drop(int ticket);
/* Async-signal-safe: unlink all of them. */
void ob_scratch_remove_all(void);

#endif
