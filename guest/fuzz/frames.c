/* Fuzz target: frames, fields and buffers. Any bytes; what is found must lie inside what was given. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "../common/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look_at_fields(struct fields fields, unsigned depth)
{
    struct field field;
    while (fields_next(&fields, &field)) {
        assert(field.value + field.bytes <= fields.end);
        (void)field_number(&field, 7);
        char *text = field_text(&field);
        assert(text == NULL || strlen(text) == field.bytes);
        free(text);
        if (depth > 0)
            look_at_fields((struct fields){field.value, field.value + field.bytes}, depth - 1);
    }
}

/* What was taken apart and is put together again is the same. */
static void write_again(const struct frame *frame)
{
    struct buffer out = {0};
    struct fields fields = fields_of(frame);
    struct field field;
    size_t mark = frame_begin(&out, frame->type, frame->id);
    while (fields_next(&fields, &field))
        put_bytes(&out, field.tag, field.value, field.bytes);
    frame_end(&out, mark);
    assert(!out.failed && buffer_size(&out) == FRAME_HEADER_BYTES + frame->body_bytes);
    assert(memcmp(buffer_bytes(&out) + FRAME_HEADER_BYTES, frame->body, frame->body_bytes) == 0);
    buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buffer in = {0};
    struct frame frame;
    size_t at = 0, used;
    enum frame_result result = FRAME_PARTIAL;
    /* in pieces of changing size, as a socket gives them */
    for (size_t piece = 1; at < size && result != FRAME_INVALID; piece = piece * 3 % 251 + 1) {
        size_t n = size - at < piece ? size - at : piece;
        buffer_append(&in, data + at, n);
        at += n;
        while ((result = frame_parse(buffer_bytes(&in), buffer_size(&in), &frame, &used)) == FRAME_COMPLETE) {
            assert(used <= buffer_size(&in) && frame.body_bytes <= FRAME_BODY_BYTES_MAX);
            look_at_fields(fields_of(&frame), 2);
            if (fields_valid(&frame))
                write_again(&frame);
            buffer_consume(&in, used);
        }
    }
    buffer_free(&in);
    return 0;
}
