/* Ending everything, step by step from the loop. Must never end the guest itself. */
#ifndef CLOCHE_CONTROL_H
#define CLOCHE_CONTROL_H

#include <stdint.h>

void sweep_tick(void);
int64_t sweep_deadline_ms(void);
/* End everything before the guest itself ends; blocks, at most about a second. */
void sweep_now(void);

#endif
