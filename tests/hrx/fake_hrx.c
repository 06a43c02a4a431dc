/* A libhrx that can do nothing, for tests of src/dev/hrx/hrx_lib.c: it is built without one function, or says that it is
 * of another version. -Dstream_dispatch=absent leaves that function out; -DMINOR=2 is the version 0.MINOR. */
#include "dev/hrx/hrx_lib.h"

#define NAME_(name) hrx_##name
#define NAME(name) NAME_(name)
#define X(name, result, args) void *NAME(name)(void); void *NAME(name)(void) { return NULL; }

#pragma GCC visibility push(default)
#define runtime_version not_used
HX_FUNCTIONS(X)
#undef runtime_version

void hrx_runtime_version(int *major, int *minor, int *patch);
void hrx_runtime_version(int *major, int *minor, int *patch)
{
    *major = 0;
    *minor = MINOR;
    *patch = 3;
}
#pragma GCC visibility pop
