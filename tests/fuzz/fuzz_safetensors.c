/* Promise of fmt: see model_file.h. The corpus has safetensors files. */
#include "model_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) { return fuzz_model_file(data, len); }
