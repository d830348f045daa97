/* Fuzz target: the spawner's create request. What is accepted names nothing outside the installation's folders. */
#include <assert.h>
#include <string.h>

#include "../spawner/spawner.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const char *text, const struct frame *frame)
{
    assert(text == NULL || strlen(text) <= frame->body_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct frame frame = {.type = R_CREATE, .id = 1, .body = data, .body_bytes = size};
    struct request request;
    struct failure failure = {0};
    if (request_parse(&request, &frame, &failure) == 0) {
        assert(id_valid(request.id) && strchr(request.id, '/') == NULL && request.id[0] != '.');
        for (size_t i = 0; i < request.layer_count; i++)
            assert(request.layers[i][0] != '/' && strncmp(request.layers[i], "../", 3) != 0 &&
                   strstr(request.layers[i], "/../") == NULL);
        check_text(request.hostname, &frame);
    } else {
        assert(failure.code != NULL && memchr(failure.message, 0, sizeof failure.message) != NULL);
    }
    request_free(&request);
    return 0;
}
