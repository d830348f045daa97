/* Runs the unit tests of the guest's parts. Built with the sanitizers by scripts/test-guest. */
#include "check.h"
#include "../guest.h"

#include <fcntl.h>

int check_failures;
struct guest guest = {.root_fd = -1, .oom_fd = -1, .cgroup_fd = -1};

int main(void)
{
    guest.root_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    test_frames();
    test_logs();
    test_users();
    test_paths();
    test_options();
    if (check_failures == 0)
        puts("guest units: ok");
    return check_failures != 0;
}
