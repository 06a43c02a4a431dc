/* tests/fuzz/fuzz.h: the convention of fuzz targets.
 *
 * fuzz_X.c defines LLVMFuzzerTestOneInput for one promise of one room: whatever the bytes, the call
 * returns a status, leaks nothing, and what it accepted can be walked in full. Its corpus is
 * corpus/X/ (small files, kept in the tree); corpus/X.dict, if there, is libFuzzer's dictionary.
 *
 *   cmake --preset fuzz && cmake --build build-fuzz
 *   build-fuzz/tests/fuzz/fuzz_X -max_total_time=300 [-dict=tests/fuzz/corpus/X.dict] \
 *       NEW_FOLDER tests/fuzz/corpus/X
 *   build-fuzz/tests/fuzz/fuzz_X -merge=1 tests/fuzz/corpus/X NEW_FOLDER   # keep what is new
 *
 * In builds without libFuzzer each target is linked with replay_main.c, and ctest (label unit) runs
 * it over its corpus. A file that once crashed is added to the corpus under a name that says how.
 */
#ifndef OB_TESTS_FUZZ_H
#define OB_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* A broken promise that no sanitizer would see. */
#define FUZZ_REQUIRE(cond)                                                                        \
    do {                                                                                          \
        if (!(cond)) {                                                                            \
            fprintf(stderr, "%s:%d: broken promise: %s\n", __FILE__, __LINE__, #cond);            \
            abort();                                                                              \
        }                                                                                         \
    } while (0)

#endif
