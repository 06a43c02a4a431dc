/* tests/devcts/devcts.h: what the files of the suite share. */
#ifndef OB_DEVCTS_DEVCTS_H
#define OB_DEVCTS_DEVCTS_H

#include "world.h"

/* The device under test, with three threads. */
ob_dev *devcts_open(bool exact);
/* An interpreter: it gets fewer sizes, one for each kind of kernel. */
bool devcts_slow(void);

/* devcts_more.c: mixtures, heads, states, parts */
extern const struct CMUnitTest devcts_more[];
extern const size_t devcts_n_more;
/* devcts_large.c: buffers over 4 GiB */
extern const struct CMUnitTest devcts_large[];
extern const size_t devcts_n_large;
/* devcts_rotated.c: products with Hadamard-rotated weights */
extern const struct CMUnitTest devcts_rotated[];
extern const size_t devcts_n_rotated;

#endif
