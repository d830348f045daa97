/* Frames and fields: what is written is read, and no torn or lying length is believed. */
#include "check.h"
#include "../common/frame.h"

#include <stdlib.h>
#include <string.h>

static unsigned seed = 1;

static unsigned next_random(void)
{
    seed = seed * 1103515245u + 12345u;
    return seed >> 16;
}

static void round_trip(void)
{
    struct buffer b = {0};
    struct frame frame;
    struct field field;
    size_t used;
    size_t mark = frame_begin(&b, 7, 0xdeadbeef);
    put_text(&b, 1, "text");
    put_number(&b, 2, UINT64_MAX - 1);
    size_t inner = put_begin(&b, 3);
    put_bytes(&b, 4, "\0\xff", 2);
    put_end(&b, inner);
    frame_end(&b, mark);
    CHECK(frame_parse(buffer_bytes(&b), buffer_size(&b), &frame, &used) == FRAME_COMPLETE);
    CHECK(used == buffer_size(&b) && frame.type == 7 && frame.id == 0xdeadbeef && fields_valid(&frame));
    struct fields fields = fields_of(&frame);
    CHECK(fields_next(&fields, &field) && field.tag == 1 && field.bytes == 4);
    char *text = field_text(&field);
    CHECK(text != NULL && strcmp(text, "text") == 0);
    free(text);
    CHECK(fields_next(&fields, &field) && field_number(&field, 0) == UINT64_MAX - 1);
    CHECK(fields_next(&fields, &field) && field.tag == 3);
    struct fields nested = {field.value, field.value + field.bytes};
    CHECK(fields_next(&nested, &field) && field.bytes == 2 && field_text(&field) == NULL);
    CHECK(field_number(&field, 42) == 42);
    CHECK(!fields_next(&nested, &field) && !fields_next(&fields, &field));
    buffer_free(&b);
}

/* Every prefix, in memory of exactly that size, so that a read beyond it is caught. */
static void every_prefix(void)
{
    struct buffer b = {0};
    size_t mark = frame_begin(&b, 3, 1);
    put_text(&b, 1, "one");
    put_number(&b, 2, 2);
    frame_end(&b, mark);
    for (size_t n = 0; n <= buffer_size(&b); n++) {
        unsigned char *exact = malloc(n + (n == 0));
        struct frame frame;
        size_t used;
        memcpy(exact, buffer_bytes(&b), n);
        CHECK(frame_parse(exact, n, &frame, &used) == (n < buffer_size(&b) ? FRAME_PARTIAL : FRAME_COMPLETE));
        free(exact);
    }
    struct frame whole;
    size_t used;
    frame_parse(buffer_bytes(&b), buffer_size(&b), &whole, &used);
    for (size_t n = 0; n <= whole.body_bytes; n++) {
        unsigned char *exact = malloc(n + (n == 0));
        memcpy(exact, whole.body, n);
        struct frame cut = {.body = exact, .body_bytes = n};
        CHECK(fields_valid(&cut) == (n == 0 || n == 9 || n == whole.body_bytes));
        free(exact);
    }
    buffer_free(&b);
}

static void lies(void)
{
    unsigned char header[FRAME_HEADER_BYTES] = {0};
    struct frame frame;
    size_t used;
    store_u32(header, FRAME_BODY_BYTES_MAX + 1);
    CHECK(frame_parse(header, sizeof header, &frame, &used) == FRAME_INVALID);
    store_u32(header, FRAME_BODY_BYTES_MAX);
    CHECK(frame_parse(header, sizeof header, &frame, &used) == FRAME_PARTIAL);
    store_u32(header, 0);
    CHECK(frame_parse(header, sizeof header, &frame, &used) == FRAME_COMPLETE);
    header[6] = 1;
    CHECK(frame_parse(header, sizeof header, &frame, &used) == FRAME_INVALID);
}

static void random_bytes(void)
{
    for (int round = 0; round < 20000; round++) {
        size_t n = next_random() % 64;
        unsigned char *bytes = malloc(n + 1);
        struct frame frame;
        struct field field;
        size_t used;
        for (size_t i = 0; i < n; i++)
            bytes[i] = next_random() % 4 == 0 ? (unsigned char)next_random() : 0;
        if (frame_parse(bytes, n, &frame, &used) == FRAME_COMPLETE) {
            struct fields fields = fields_of(&frame);
            CHECK(used <= n);
            while (fields_next(&fields, &field))
                free(field_text(&field));
        }
        free(bytes);
    }
}

static void buffers(void)
{
    struct buffer b = {0};
    unsigned char in = 0, out = 0;
    for (int round = 0; round < 3000; round++) {
        size_t more = next_random() % 200, less = next_random() % 200;
        for (size_t i = 0; i < more; i++, in++)
            buffer_append(&b, &in, 1);
        for (; less > 0 && buffer_size(&b) > 0; less--, out++) {
            CHECK(*buffer_bytes(&b) == out);
            buffer_consume(&b, 1);
        }
    }
    CHECK(!b.failed);
    CHECK(buffer_reserve(&b, SIZE_MAX / 2 + 2) == NULL && b.failed);
    buffer_free(&b);
}

void test_frames(void)
{
    round_trip();
    every_prefix();
    lies();
    random_bytes();
    buffers();
}
