/* Failures in words. Must never lose the error number that the kernel gave. */
#include "spawner.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *code_of(int error)
{
    switch (error) {
    case ENOSPC:
    case EDQUOT:
        return "disk_full";
    case EMFILE:
    case ENFILE:
    case EAGAIN:
    case ENOMEM:
        return "host_limit";
    default:
        return "failed";
    }
}

int fail(struct failure *f, const char *what)
{
    int error = errno;
    return fail_with(f, code_of(error), error, "%s: %s", what, strerror(error));
}

int fail_with(struct failure *f, const char *code, int error, const char *format, ...)
{
    va_list arguments;
    f->code = code;
    f->error = error;
    va_start(arguments, format);
    vsnprintf(f->message, sizeof f->message, format, arguments);
    va_end(arguments);
    return -1;
}
