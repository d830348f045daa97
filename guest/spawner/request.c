/* Takes a create request apart. Must never accept a name or a path that leads out of our folders. */
#include "spawner.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LIST_MAX 4096

/* As cloche.core.ids.is_name has it. */
bool id_valid(const char *id)
{
    size_t size = strlen(id);
    if (size == 0 || size >= ID_BYTES || !(islower((unsigned char)*id) || isdigit((unsigned char)*id)))
        return false;
    for (; *id != 0; id++)
        if (!islower((unsigned char)*id) && !isdigit((unsigned char)*id) && strchr("._-", *id) == NULL)
            return false;
    return true;
}

/* A path below a folder: no absolute path, no `..`. */
static bool relative_valid(const char *path)
{
    if (*path == 0 || *path == '/')
        return false;
    for (const char *at = path; at != NULL; at = strchr(at, '/')) {
        at += *at == '/';
        if (strncmp(at, "..", 2) == 0 && (at[2] == 0 || at[2] == '/'))
            return false;
    }
    return true;
}

static bool volumes_valid(const struct request *r)
{
    if (r->volume_count != r->target_count || r->volume_count > VOLUMES_MAX)
        return false;
    for (size_t i = 0; i < r->volume_count; i++)
        if (r->volume_sources[i][0] != '/' || r->volume_targets[i][0] != '/' ||
            !relative_valid(r->volume_targets[i] + 1) || strlen(r->volume_targets[i]) >= TARGET_BYTES)
            return false;
    return true;
}

static int append(char ***list, size_t *count, const struct field *field)
{
    char *text = *count < LIST_MAX ? field_text(field) : NULL;
    char **longer = text == NULL ? NULL : realloc(*list, (*count + 2) * sizeof *longer);
    if (longer == NULL) {
        free(text);
        return -1;
    }
    *list = longer;
    longer[(*count)++] = text;
    longer[*count] = NULL;
    return 0;
}

static int take_text(char **out, const struct field *field)
{
    if (*out != NULL)
        return -1;
    *out = field_text(field);
    return *out == NULL ? -1 : 0;
}

static int take(struct request *r, const struct field *field)
{
    switch (field->tag) {
    case W_ID:
        return take_text(&r->id, field);
    case W_HOSTNAME:
        return take_text(&r->hostname, field);
    case W_RECORD:
        r->record = *field;
        return 0;
    case W_HOSTS:
        r->hosts = *field;
        return 0;
    case W_RESOLV:
        r->resolv = *field;
        return 0;
    case W_LAYER:
        return append(&r->layers, &r->layer_count, field);
    case W_ARG:
        return append(&r->argv, &r->arg_count, field);
    case W_ENV:
        return append(&r->envp, &r->env_count, field);
    case W_VOLUME_SOURCE:
        return append(&r->volume_sources, &r->volume_count, field);
    case W_VOLUME_TARGET:
        return append(&r->volume_targets, &r->target_count, field);
    case W_MEMORY:
        r->memory = field_number(field, 0);
        return 0;
    case W_CPU_US:
        r->cpu_us = field_number(field, 0);
        return 0;
    case W_PIDS:
        r->pids = field_number(field, 0);
        return 0;
    case W_POOL:
        r->pool = field_number(field, 0);
        return 0;
    case W_DISK:
        r->disk = field_number(field, 0);
        return r->disk == 0 ? -1 : 0;
    case W_DISK_TMPFS:
        r->disk_tmpfs = field_number(field, 0) != 0;
        return 0;
    case W_SHM:
        r->shm = field_number(field, 0);
        return 0;
    case W_NETWORK:
        r->network = field_number(field, 99) == NETWORK_PUBLIC ? NETWORK_PUBLIC : NETWORK_NONE;
        return field_number(field, 99) > NETWORK_PUBLIC ? -1 : 0;
    default:
        return -1;
    }
}

int request_parse(struct request *r, const struct frame *frame, struct failure *f)
{
    static char *nothing[] = {NULL};
    struct fields fields = fields_of(frame);
    struct field field;
    *r = (struct request){0};
    if (!fields_valid(frame))
        return fail_with(f, "bad_request", EINVAL, "the request is torn");
    while (fields_next(&fields, &field))
        if (take(r, &field) != 0)
            return fail_with(f, "bad_request", EINVAL, "field %u of the request is wrong", field.tag);
    if (r->id == NULL || !id_valid(r->id) || r->hostname == NULL || r->layer_count == 0 || r->arg_count == 0)
        return fail_with(f, "bad_request", EINVAL, "the request lacks a valid id, hostname, layer or argument");
    if (!volumes_valid(r))
        return fail_with(f, "bad_request", EINVAL, "a volume needs an absolute source and target; %d at most", VOLUMES_MAX);
    for (size_t i = 0; i < r->layer_count; i++)
        if (!relative_valid(r->layers[i]))
            return fail_with(f, "bad_request", EINVAL, "layer %s is not below the state folder", r->layers[i]);
    if (r->envp == NULL)
        r->envp = nothing;
    return 0;
}

static void free_list(char **list, size_t count)
{
    if (count == 0)
        return;
    for (size_t i = 0; i < count; i++)
        free(list[i]);
    free(list);
}

void request_free(struct request *r)
{
    free(r->id);
    free(r->hostname);
    free_list(r->layers, r->layer_count);
    free_list(r->argv, r->arg_count);
    free_list(r->envp, r->env_count);
    free_list(r->volume_sources, r->volume_count);
    free_list(r->volume_targets, r->target_count);
}
