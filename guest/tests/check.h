/* The smallest of test tools: CHECK says where it failed, and the program goes on and ends with 1. */
#ifndef CLOCHE_CHECK_H
#define CLOCHE_CHECK_H

#include <stdio.h>

extern int check_failures;

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);   \
            check_failures++;                                                         \
        }                                                                             \
    } while (0)

void test_frames(void);
void test_logs(void);
void test_users(void);
void test_paths(void);
void test_options(void);

#endif
