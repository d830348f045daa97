/* Reads what to run from a START request: arguments and environment. Must never run anything. */
#include "launch.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_PATH "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

extern char **environ;

static bool append(char ***array, size_t *count, char *text)
{
    if (text == NULL)
        return false;
    char **larger = realloc(*array, (*count + 2) * sizeof *larger);
    if (larger == NULL) {
        free(text);
        return false;
    }
    *array = larger;
    larger[(*count)++] = text;
    larger[*count] = NULL;
    return true;
}

static size_t name_bytes(const char *assignment) { return (size_t)(strchrnul(assignment, '=') - assignment); }

/* Where NAME of NAME=value stands in the environment, or the count when it does not. */
static size_t env_index(const struct launch *l, const char *assignment)
{
    size_t bytes = name_bytes(assignment);
    for (size_t i = 0; i < l->env_count; i++)
        if (name_bytes(l->envp[i]) == bytes && memcmp(l->envp[i], assignment, bytes) == 0)
            return i;
    return l->env_count;
}

/* Owns text. */
static bool env_set(struct launch *l, char *text, bool replace)
{
    if (text == NULL)
        return false;
    size_t index = env_index(l, text);
    if (index == l->env_count)
        return append(&l->envp, &l->env_count, text);
    if (!replace) {
        free(text);
        return true;
    }
    free(l->envp[index]);
    l->envp[index] = text;
    return true;
}

bool launch_read(struct launch *l, const struct request *r, const char **error)
{
    struct fields fields = r->fields;
    struct field field;
    bool good = true;
    for (char **at = environ; good && at != NULL && *at != NULL; at++)
        good = append(&l->envp, &l->env_count, strdup(*at));
    char *shell = request_text(r, F_SHELL);
    if (shell != NULL) {
        good = append(&l->argv, &l->arg_count, strdup("/bin/sh")) &&
               append(&l->argv, &l->arg_count, strdup("-c")) && append(&l->argv, &l->arg_count, shell);
    }
    while (good && fields_next(&fields, &field)) {
        if (field.tag == F_ARG && shell == NULL)
            good = append(&l->argv, &l->arg_count, field_text(&field));
        else if (field.tag == F_ENV)
            good = env_set(l, field_text(&field), true);
    }
    if (good && l->arg_count > 0 && l->argv[0][0] != 0)
        return true;
    *error = good ? "there is nothing to run" : "an argument or a variable holds a NUL";
    return false;
}

bool launch_environment(struct launch *l, bool terminal)
{
    char home[sizeof l->who.home + 8] = "HOME=";
    strcat(home, l->who.home);
    return env_set(l, strdup(DEFAULT_PATH), false) && env_set(l, strdup(home), false) &&
           (!terminal || env_set(l, strdup("TERM=xterm"), false)) &&
           (l->envp != NULL);
}

void launch_free(struct launch *l)
{
    for (size_t i = 0; i < l->arg_count; i++)
        free(l->argv[i]);
    for (size_t i = 0; i < l->env_count; i++)
        free(l->envp[i]);
    free(l->argv);
    free(l->envp);
    free(l->cwd);
}
