/* convert/convert_int.h: which type each tensor gets. For this room only. */
#ifndef OB_CONVERT_CONVERT_INT_H
#define OB_CONVERT_CONVERT_INT_H

#include "convert/convert.h"

typedef struct conv_target {
    ob_type type;
    bool rotate;     /* H32 before quantising */
    bool fallback;   /* its rows do not fit the type of the mix */
    bool by_rule;
} conv_target;

/* targets [ob_file_n_tensors]; *file_type: GGUF's general.file_type of the mix. */
OB_MUST_CHECK ob_status conv_choose_types(const ob_file *f, const ob_quantize_params *p, conv_target *targets,
                                          uint32_t *file_type, ob_err *err);

#endif
