#include "engine/engine.h"

void ob_engine_defaults(ob_engine_params *p)
{
    *p = (ob_engine_params){.k_type = OB_F16, .v_type = OB_F16, .moe_guess = true, .prefill_min_tokens = 1024};
}
