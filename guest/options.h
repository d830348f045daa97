/* The guest's command line. */
#ifndef CLOCHE_OPTIONS_H
#define CLOCHE_OPTIONS_H

#include "guest.h"

/* False after saying what is wrong, or after doing what was asked (--protocol-version: exits 0). */
bool options_read(struct options *o, int argc, char **argv);

#endif
