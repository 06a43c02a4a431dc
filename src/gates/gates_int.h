/* gates/gates_int.h: inside gates/. */
#ifndef OB_GATES_GATES_INT_H
#define OB_GATES_GATES_INT_H

#include <stddef.h>
#include <stdint.h>

/* A name for people, and 16 hex digits that stay while the machine does. */
void ob_gates_machine(char *name, size_t cap, char id[20]);
/* "2026-11-29", UTC. */
void ob_gates_date(int64_t time, char out[16]);

#endif
