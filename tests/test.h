/* tests/test.h: cmocka with the headers it wants before it. */
#ifndef OB_TEST_H
#define OB_TEST_H
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#endif
