/* dev/cpu/linear_pack.h: from blocks of a model file to the packed layout of linear_int.h. */
#ifndef OB_DEV_CPU_LINEAR_PACK_H
#define OB_DEV_CPU_LINEAR_PACK_H

#include "dev/cpu/linear_int.h"

/* The packed format of a weight type (any type that has a dequantiser). */
lin_format lin_format_of(ob_type t);

#endif
