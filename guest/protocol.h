/*
 * The numbers of the guest's protocol; docs/protocol.md says what they mean. The Python client holds the
 * same numbers and a test compares the two. A number that was released never changes its meaning.
 */
#ifndef CLOCHE_PROTOCOL_H
#define CLOCHE_PROTOCOL_H

#define PROTOCOL_VERSION 1

#define DATA_BYTES_MAX 32768      /* bytes in one DATA frame that the guest sends */
#define DATA_HEADER_BYTES 8       /* u64 offset */
#define WINDOW_BYTES 262144       /* what a client may send on a new stream before it gets credit */
#define LIST_ENTRIES_MAX 512      /* entries in one page of a listing */

enum type {
    /* requests: each gets exactly one REPLY or ERROR with its id */
    T_HELLO = 1,
    T_PING = 2,
    T_START = 3,
    T_WAIT = 4,
    T_OUTPUT = 5,
    T_STDIN = 6,
    T_SIGNAL = 7,
    T_RESIZE = 8,
    T_CANCEL = 9,
    T_COMMANDS = 10,
    T_KILL_ALL = 11,
    T_HEARTBEAT = 12,
    T_EXTEND = 13,
    T_SHUTDOWN = 14,
    T_READ = 20,
    T_WRITE = 21,
    T_STAT = 22,
    T_LIST = 23,
    T_MAKE_DIR = 24,
    T_REMOVE = 25,
    T_MOVE = 26,
    T_SYMLINK = 27,
    /* on a stream that a request opened */
    T_DATA = 40,
    T_CREDIT = 41,
    T_FINISH = 42,
    T_RESET = 43,
    /* from the guest */
    T_REPLY = 50,
    T_ERROR = 51,
};

enum tag {
    F_VERSION = 1,      /* number */
    F_TOKEN = 2,        /* bytes, for transports that need it */
    F_CODE = 3,         /* number: enum error_code */
    F_MESSAGE = 4,      /* text */
    F_ERRNO = 5,        /* number */
    F_COMMAND = 6,      /* text: the command's id */
    F_ARG = 7,          /* text, repeated */
    F_SHELL = 8,        /* text */
    F_ENV = 9,          /* text NAME=value, repeated */
    F_CWD = 10,         /* text */
    F_USER = 11,        /* text */
    F_STDIN = 12,       /* number: enum stdin_mode */
    F_COLUMNS = 13,     /* number; makes a terminal */
    F_ROWS = 14,        /* number */
    F_TIMEOUT_MS = 15,  /* number */
    F_GRACE_MS = 16,    /* number */
    F_CAP_BYTES = 17,   /* number */
    F_SPILL = 18,       /* number: 1 */
    F_ATTACHED = 19,    /* number: 1 when the id was started before */
    F_PID = 20,         /* number */
    F_STREAM = 21,      /* number: 0 stdout, 1 stderr */
    F_OFFSET = 22,      /* number */
    F_CREDIT = 23,      /* number: bytes the receiver takes */
    F_AT_END = 24,      /* number: 1 waits for the end, then sends what memory holds */
    F_SIGNAL = 25,      /* number */
    F_REASON = 26,      /* number: enum end_reason */
    F_EXIT_CODE = 27,   /* number */
    F_TOTAL_BYTES = 28, /* number */
    F_DURATION_US = 29, /* number */
    F_CPU_US = 30,      /* number */
    F_PEAK_BYTES = 31,  /* number */
    F_UNEXPECTED = 32,  /* number: 1 when SIGKILL ended it and the guest did not send it */
    F_ENTRY = 33,       /* fields, repeated */
    F_NEXT = 34,        /* number: ask for this to get the next page */
    F_RUNNING = 35,     /* number */
    F_STARTED_MS = 36,  /* number: CLOCK_REALTIME, since 1970 */
    F_TTL_MS = 37,      /* number */
    F_PATH = 38,        /* bytes */
    F_TARGET = 39,      /* bytes */
    F_LENGTH = 40,      /* number */
    F_MODE = 41,        /* number: permission bits */
    F_KIND = 42,        /* number: the S_IFMT bits */
    F_UID = 43,         /* number */
    F_GID = 44,         /* number */
    F_MTIME_NS = 45,    /* number */
    F_NAME = 46,        /* bytes */
    F_RECURSIVE = 47,   /* number: 1 */
    F_PARENTS = 48,     /* number: 1 */
    F_TREE = 49,        /* text: how trees are ended: cgroup, keeper */
    F_LIMIT = 50,       /* number */
    F_CONNECTIONS = 51, /* number */
    F_FOLLOW = 52,      /* number: 1 looks at what a symbolic link leads to */
    F_TTL_ALONE_MS = 70, /* number: what is left of the ttl, whatever the other limits; absent: for ever */
};

enum stdin_mode { STDIN_EMPTY = 0, STDIN_STREAM = 1 };

enum end_reason {
    END_EXIT = 1,
    END_SIGNAL = 2,
    END_TIMEOUT = 3,
    END_CANCELLED = 4,
    END_OUT_OF_MEMORY = 5,
    END_START_FAILED = 6,
};

enum error_code {
    E_BAD_FRAME = 1,    /* the connection is closed after it */
    E_VERSION = 2,      /* the connection is closed after it */
    E_BAD_REQUEST = 3,  /* a field is missing or wrong */
    E_NO_COMMAND = 4,   /* no command of that id */
    E_NOT_RUNNING = 5,  /* the command is over */
    E_SYSTEM = 7,       /* a system call failed: see F_ERRNO */
    E_LIMIT = 8,        /* too many of something */
    E_UNKNOWN_TYPE = 9, /* a request of a later version */
    E_CLOSED = 10,      /* stdin is closed */
    E_TOKEN = 11,       /* the connection is closed after it */
};

#endif
