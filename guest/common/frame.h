/*
 * Length-prefixed frames and tagged fields, as docs/protocol.md has them: shared by the guest and the
 * spawner. Must never read beyond what it was given, and never trust a length that came from outside.
 *
 * frame  = u32 body bytes, u16 type, u16 flags (0), u32 id, body        all numbers little-endian
 * body   = fields, or bytes whose meaning the type gives
 * field  = u16 tag, u32 value bytes, value                              a number is a value of 8 bytes
 */
#ifndef CLOCHE_FRAME_H
#define CLOCHE_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAME_HEADER_BYTES 12
#define FRAME_BODY_BYTES_MAX (1u << 20)
#define FIELD_HEADER_BYTES 6

/* Bytes that grow at the end and are consumed at the beginning. All zero is a valid empty buffer. */
struct buffer {
    unsigned char *data;
    size_t begin, end, capacity;
    bool failed; /* memory ran out once: what it holds is incomplete, drop it */
};

static inline size_t buffer_size(const struct buffer *b) { return b->end - b->begin; }
static inline unsigned char *buffer_bytes(const struct buffer *b)
{
    return b->data == NULL ? NULL : b->data + b->begin;
}

/* Make room for n more bytes and return where they go, or NULL (failed is set then). */
unsigned char *buffer_reserve(struct buffer *b, size_t n);
void buffer_append(struct buffer *b, const void *data, size_t n);
/* Drop n bytes from the beginning. Gives all memory back when nothing is left and it was much. */
void buffer_consume(struct buffer *b, size_t n);
void buffer_free(struct buffer *b);

struct frame {
    uint16_t type;
    uint32_t id;
    const unsigned char *body;
    size_t body_bytes;
};

enum frame_result { FRAME_PARTIAL, FRAME_COMPLETE, FRAME_INVALID };

/* Look at the first frame of data. Complete: *frame points into data and *used says how long it is. */
enum frame_result frame_parse(const unsigned char *data, size_t size, struct frame *frame, size_t *used);

/* Write a frame: begin, put fields or bytes, end. Returns what frame_end wants. */
size_t frame_begin(struct buffer *b, uint16_t type, uint32_t id);
void frame_end(struct buffer *b, size_t mark);
void put_bytes(struct buffer *b, uint16_t tag, const void *value, size_t n);
void put_text(struct buffer *b, uint16_t tag, const char *text);
void put_number(struct buffer *b, uint16_t tag, uint64_t value);
/* A field that holds fields: begin, put, end. */
size_t put_begin(struct buffer *b, uint16_t tag);
void put_end(struct buffer *b, size_t mark);

struct field {
    uint16_t tag;
    const unsigned char *value;
    size_t bytes;
};

struct fields {
    const unsigned char *at, *end;
};

static inline struct fields fields_of(const struct frame *frame)
{
    return (struct fields){frame->body, frame->body + frame->body_bytes};
}

/* Whether the body is a whole number of fields: after this, fields_next never meets a torn one. */
bool fields_valid(const struct frame *frame);
/* The next field; false at the end (or at a torn field). */
bool fields_next(struct fields *fields, struct field *field);
/* The number in the field; fallback when it is not 8 bytes long. */
uint64_t field_number(const struct field *field, uint64_t fallback);
/* A copy of the value that ends in NUL, to be freed; NULL when it holds a NUL or memory ran out. */
char *field_text(const struct field *field);

uint32_t load_u32(const unsigned char *at);
uint64_t load_u64(const unsigned char *at);
void store_u32(unsigned char *at, uint32_t value);
void store_u64(unsigned char *at, uint64_t value);

#endif
