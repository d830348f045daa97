/* Frames, fields and the buffers that hold them; see frame.h. Must never block, and know no descriptor. */
#include "frame.h"

#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES_MIN 512
#define BUFFER_BYTES_KEPT 4096 /* an empty buffer larger than this gives its memory back */

unsigned char *buffer_reserve(struct buffer *b, size_t n)
{
    if (b->capacity - b->end >= n && b->data != NULL)
        return b->data + b->end;
    size_t size = buffer_size(b);
    if (b->begin > 0) {
        memmove(b->data, b->data + b->begin, size);
        b->begin = 0;
        b->end = size;
    }
    if (b->data == NULL || b->capacity - size < n) {
        size_t capacity = b->capacity < BUFFER_BYTES_MIN ? BUFFER_BYTES_MIN : b->capacity;
        while (capacity - size < n) {
            if (capacity > SIZE_MAX / 2) {
                b->failed = true;
                return NULL;
            }
            capacity *= 2;
        }
        unsigned char *data = realloc(b->data, capacity);
        if (data == NULL) {
            b->failed = true;
            return NULL;
        }
        b->data = data;
        b->capacity = capacity;
    }
    return b->data + b->end;
}

void buffer_append(struct buffer *b, const void *data, size_t n)
{
    if (n == 0)
        return;
    unsigned char *to = buffer_reserve(b, n);
    if (to == NULL)
        return;
    memcpy(to, data, n);
    b->end += n;
}

void buffer_consume(struct buffer *b, size_t n)
{
    b->begin += n;
    if (b->begin < b->end)
        return;
    b->begin = b->end = 0;
    if (b->capacity > BUFFER_BYTES_KEPT) {
        free(b->data);
        b->data = NULL;
        b->capacity = 0;
    }
}

void buffer_free(struct buffer *b)
{
    free(b->data);
    *b = (struct buffer){0};
}

static uint16_t load_u16(const unsigned char *at) { return (uint16_t)(at[0] | at[1] << 8); }

uint32_t load_u32(const unsigned char *at) { return load_u16(at) | (uint32_t)load_u16(at + 2) << 16; }

uint64_t load_u64(const unsigned char *at) { return load_u32(at) | (uint64_t)load_u32(at + 4) << 32; }

static void store_u16(unsigned char *at, uint16_t value)
{
    at[0] = (unsigned char)value;
    at[1] = (unsigned char)(value >> 8);
}

void store_u32(unsigned char *at, uint32_t value)
{
    store_u16(at, (uint16_t)value);
    store_u16(at + 2, (uint16_t)(value >> 16));
}

void store_u64(unsigned char *at, uint64_t value)
{
    store_u32(at, (uint32_t)value);
    store_u32(at + 4, (uint32_t)(value >> 32));
}

enum frame_result frame_parse(const unsigned char *data, size_t size, struct frame *frame, size_t *used)
{
    if (size < FRAME_HEADER_BYTES)
        return FRAME_PARTIAL;
    uint32_t body_bytes = load_u32(data);
    if (body_bytes > FRAME_BODY_BYTES_MAX || load_u16(data + 6) != 0)
        return FRAME_INVALID;
    if (size - FRAME_HEADER_BYTES < body_bytes)
        return FRAME_PARTIAL;
    frame->type = load_u16(data + 4);
    frame->id = load_u32(data + 8);
    frame->body = data + FRAME_HEADER_BYTES;
    frame->body_bytes = body_bytes;
    *used = FRAME_HEADER_BYTES + (size_t)body_bytes;
    return FRAME_COMPLETE;
}

/* Marks count from the beginning of the valid bytes, since a reserve may move them. */
size_t frame_begin(struct buffer *b, uint16_t type, uint32_t id)
{
    size_t mark = buffer_size(b);
    unsigned char *at = buffer_reserve(b, FRAME_HEADER_BYTES);
    if (at == NULL)
        return mark;
    store_u32(at, 0);
    store_u16(at + 4, type);
    store_u16(at + 6, 0);
    store_u32(at + 8, id);
    b->end += FRAME_HEADER_BYTES;
    return mark;
}

void frame_end(struct buffer *b, size_t mark)
{
    if (!b->failed)
        store_u32(buffer_bytes(b) + mark, (uint32_t)(buffer_size(b) - mark - FRAME_HEADER_BYTES));
}

size_t put_begin(struct buffer *b, uint16_t tag)
{
    size_t mark = buffer_size(b);
    unsigned char *at = buffer_reserve(b, FIELD_HEADER_BYTES);
    if (at == NULL)
        return mark;
    store_u16(at, tag);
    store_u32(at + 2, 0);
    b->end += FIELD_HEADER_BYTES;
    return mark;
}

void put_end(struct buffer *b, size_t mark)
{
    if (!b->failed)
        store_u32(buffer_bytes(b) + mark + 2, (uint32_t)(buffer_size(b) - mark - FIELD_HEADER_BYTES));
}

void put_bytes(struct buffer *b, uint16_t tag, const void *value, size_t n)
{
    size_t mark = put_begin(b, tag);
    buffer_append(b, value, n);
    put_end(b, mark);
}

void put_text(struct buffer *b, uint16_t tag, const char *text) { put_bytes(b, tag, text, strlen(text)); }

void put_number(struct buffer *b, uint16_t tag, uint64_t value)
{
    unsigned char bytes[8];
    store_u64(bytes, value);
    put_bytes(b, tag, bytes, sizeof bytes);
}

bool fields_next(struct fields *fields, struct field *field)
{
    size_t left = (size_t)(fields->end - fields->at);
    if (left < FIELD_HEADER_BYTES)
        return false;
    size_t bytes = load_u32(fields->at + 2);
    if (bytes > left - FIELD_HEADER_BYTES)
        return false;
    field->tag = load_u16(fields->at);
    field->value = fields->at + FIELD_HEADER_BYTES;
    field->bytes = bytes;
    fields->at = field->value + bytes;
    return true;
}

bool fields_valid(const struct frame *frame)
{
    struct fields fields = fields_of(frame);
    struct field field;
    while (fields_next(&fields, &field)) {
    }
    return fields.at == fields.end;
}

uint64_t field_number(const struct field *field, uint64_t fallback)
{
    return field->bytes == 8 ? load_u64(field->value) : fallback;
}

char *field_text(const struct field *field)
{
    if (memchr(field->value, 0, field->bytes) != NULL)
        return NULL;
    char *text = malloc(field->bytes + 1);
    if (text == NULL)
        return NULL;
    memcpy(text, field->value, field->bytes);
    text[field->bytes] = 0;
    return text;
}
