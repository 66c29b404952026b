/* The load generator of cycles: put a message, get one, delete that one, on N connections.

   It shares its machine with the server that it measures, so it does as little as can be done:
   requests come ready from the caller, answers are searched and not parsed, and a request costs one
   recv, one send and a part of an epoll_wait. It is the same for HTTP and for beanstalkd's protocol.

     cycle PORT CONNECTIONS SECONDS h|l

   Standard input: eight texts, each behind its length as a number of 8 bytes in the machine's
   order: the requests to put and to get, the three pieces of that to delete (an id comes behind
   the first, a receipt behind the second), and how a good answer to each of the verbs begins.
   After "connected" on the standard output it waits for one byte more.

   Standard output then: a line with the number of samples of put, get, delete and whole cycles, of
   gets that brought nothing, and nanoseconds of wall, user and kernel time; then the samples, each
   the nanoseconds of a request as 8 bytes. Anything wrong: a line on standard error, and status 1. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PUT, GET, DELETE, CYCLE, KINDS };
enum { ROOM = 1 << 17, LONGEST_HANDLE = 2048, MOST_READY = 1024, MOST_EMPTY = 100000 };
enum { QUIET_MS = 60000 };

static const char *const NAMES[] = {"put", "get", "delete"};

typedef struct {
    char *text;
    size_t size;
} Text;

typedef struct {
    int fd;
    int step;
    int is_done;
    size_t have;
    uint64_t sent_ns, began_ns;
    char answer[ROOM + 1]; /* closed by a 0, so that it can be searched */
} Connection;

typedef struct {
    uint64_t *ns;
    size_t count, room;
} Samples;

static Text put, get, before_id, before_receipt, after, expected[3];
static Samples samples[KINDS];
static uint64_t empty_gets, empty_in_row, stop_ns;
static int is_http, active;

static void fail(const char *form, ...) {
    va_list more;
    va_start(more, form);
    vfprintf(stderr, form, more);
    va_end(more);
    fputc('\n', stderr);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static void *need(void *memory) {
    if (!memory) fail("out of memory");
    return memory;
}

static void read_whole(char *into, size_t size) {
    while (size) {
        ssize_t got = read(STDIN_FILENO, into, size);
        if (got <= 0) fail("the requests ended early");
        into += got, size -= (size_t)got;
    }
}

static Text read_text(void) {
    uint64_t size;
    read_whole((char *)&size, sizeof size);
    Text text = {need(malloc(size + 1)), size};
    read_whole(text.text, size);
    text.text[size] = 0;
    return text;
}

static void note(int kind, uint64_t ns) {
    Samples *of = &samples[kind];
    if (of->count == of->room) {
        of->room = of->room ? of->room * 2 : 1 << 16;
        of->ns = need(realloc(of->ns, of->room * sizeof *of->ns));
    }
    of->ns[of->count++] = ns;
}

static void send_whole(Connection *to, const char *text, size_t size) {
    to->sent_ns = now_ns();
    while (size) {
        ssize_t sent = send(to->fd, text, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            struct pollfd wait = {to->fd, POLLOUT, 0};
            poll(&wait, 1, QUIET_MS);
            continue;
        }
        if (sent < 0) fail("sending a %s: %s", NAMES[to->step], strerror(errno));
        text += sent, size -= (size_t)sent;
    }
}

/* Return how long the answer is that has begun to come, or 0 while that is unknown. */
static size_t length_of(const Connection *of) {
    const char *line = strstr(of->answer, "\r\n");
    if (!line) return 0;
    if (!is_http) {
        size_t head = (size_t)(line - of->answer) + 2;
        if (strncmp(of->answer, "RESERVED ", 9)) return head;
        const char *size = memrchr(of->answer, ' ', head);
        return head + strtoul(size + 1, NULL, 10) + 2;
    }
    const char *end = strstr(of->answer, "\r\n\r\n");
    if (!end) return 0;
    size_t head = (size_t)(end - of->answer) + 4;
    for (; line < end; line = strstr(line + 2, "\r\n"))
        if (!strncasecmp(line + 2, "content-length:", 15))
            return head + strtoul(line + 17, NULL, 10);
    if (strstr(of->answer, " 204 ") == of->answer + 8) return head;
    /* In chunks; one request is under way at a time, so the last chunk ends what has come. */
    int is_whole = of->have >= 5 && !memcmp(of->answer + of->have - 5, "0\r\n\r\n", 5);
    return is_whole ? of->have : 0;
}

static size_t copy(char *into, const char *from, size_t size) {
    memcpy(into, from, size);
    return size;
}

/* Send the delete of the message in the answer; return 0 if there is no message in it. */
static int delete_it(Connection *of) {
    static char request[ROOM];
    const char *id, *id_end, *receipt = "", *receipt_end = receipt;
    if (is_http) {
        id = strstr(of->answer, "<MessageId>");
        if (!id) return 0;
        id += 11;
        id_end = strchr(id, '<');
        receipt = strstr(of->answer, "<PopReceipt>");
        if (!id_end || !receipt) fail("an answer to a get has no receipt: %.500s", of->answer);
        receipt += 12;
        receipt_end = strchr(receipt, '<');
        if (!receipt_end) fail("an answer to a get was cut: %.500s", of->answer);
    } else {
        id = of->answer + 9;
        id_end = strchr(id, ' ');
        if (!id_end) fail("no id in %.80s", of->answer);
    }
    size_t id_size = (size_t)(id_end - id), receipt_size = (size_t)(receipt_end - receipt);
    if (id_size + receipt_size > LONGEST_HANDLE) fail("an id or a receipt is too long");
    char *at = request;
    at += copy(at, before_id.text, before_id.size);
    at += copy(at, id, id_size);
    at += copy(at, before_receipt.text, before_receipt.size);
    for (; receipt < receipt_end; receipt++) {
        /* The characters of base64 that a query cannot hold. */
        if (*receipt == '+' || *receipt == '/' || *receipt == '=')
            at += sprintf(at, "%%%02X", *receipt);
        else
            *at++ = *receipt;
    }
    at += copy(at, after.text, after.size);
    of->step = DELETE;
    send_whole(of, request, (size_t)(at - request));
    return 1;
}

static void begin(Connection *of) {
    of->step = PUT;
    send_whole(of, put.text, put.size);
    of->began_ns = of->sent_ns;
}

/* Take a whole answer, and go on. */
static void take(Connection *of) {
    uint64_t at_ns = now_ns();
    if (strncmp(of->answer, expected[of->step].text, expected[of->step].size))
        fail("unexpected answer to %s: %.500s", NAMES[of->step], of->answer);
    note(of->step, at_ns - of->sent_ns);
    of->have = 0;
    if (of->step == PUT) {
        of->step = GET;
        send_whole(of, get.text, get.size);
    } else if (of->step == GET) {
        if (delete_it(of)) {
            empty_in_row = 0;
            return;
        }
        empty_gets++;
        if (++empty_in_row > MOST_EMPTY) fail("messages are missing: gets go on bringing none");
        send_whole(of, get.text, get.size);
    } else {
        note(CYCLE, at_ns - of->began_ns);
        if (at_ns < stop_ns) {
            begin(of);
        } else {
            of->is_done = 1;
            active--;
        }
    }
}

static void receive(Connection *of) {
    ssize_t got = recv(of->fd, of->answer + of->have, ROOM - of->have, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) fail("the server closed a connection during %s", NAMES[of->step]);
    of->have += (size_t)got;
    of->answer[of->have] = 0;
    size_t length = length_of(of);
    if (length >= ROOM) fail("an answer of %zu bytes is too long", length);
    if (!length || of->have < length) return;
    if (of->have > length || of->is_done) fail("more than one answer to %s", NAMES[of->step]);
    take(of);
}

static int connected(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int yes = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) fail("connect: %s", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

static uint64_t in_ns(struct timeval time) {
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_usec * 1000u;
}

int main(int count, char **words) {
    if (count != 5) fail("cycle PORT CONNECTIONS SECONDS h|l");
    int port = atoi(words[1]), many = atoi(words[2]);
    double seconds = atof(words[3]);
    is_http = words[4][0] == 'h';
    Text *all[] = {&put, &get, &before_id, &before_receipt, &after};
    for (int each = 0; each < 5; each++) *all[each] = read_text();
    for (int verb = 0; verb < 3; verb++) expected[verb] = read_text();
    if (before_id.size + before_receipt.size + after.size + 3 * LONGEST_HANDLE > ROOM)
        fail("the request to delete is too long");
    Connection *connections = need(calloc((size_t)many, sizeof *connections));
    int ready = epoll_create1(EPOLL_CLOEXEC);
    for (int each = 0; each < many; each++) {
        Connection *of = &connections[each];
        of->fd = connected(port);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = of};
        if (epoll_ctl(ready, EPOLL_CTL_ADD, of->fd, &event)) fail("epoll: %s", strerror(errno));
    }
    puts("connected");
    fflush(stdout);
    char go;
    read_whole(&go, 1);
    struct rusage first, last;
    getrusage(RUSAGE_SELF, &first);
    uint64_t began_ns = now_ns();
    stop_ns = began_ns + (uint64_t)(seconds * 1e9);
    active = many;
    for (int each = 0; each < many; each++) begin(&connections[each]);
    while (active) {
        static struct epoll_event events[MOST_READY];
        int found = epoll_wait(ready, events, MOST_READY, QUIET_MS);
        if (found < 0 && errno != EINTR) fail("epoll: %s", strerror(errno));
        if (!found) fail("no answer for %d s", QUIET_MS / 1000);
        for (int each = 0; each < found; each++) receive(events[each].data.ptr);
    }
    uint64_t wall_ns = now_ns() - began_ns;
    getrusage(RUSAGE_SELF, &last);
    printf("%zu %zu %zu %zu %llu %llu %llu %llu\n", samples[PUT].count, samples[GET].count,
           samples[DELETE].count, samples[CYCLE].count, (unsigned long long)empty_gets,
           (unsigned long long)wall_ns,
           (unsigned long long)(in_ns(last.ru_utime) - in_ns(first.ru_utime)),
           (unsigned long long)(in_ns(last.ru_stime) - in_ns(first.ru_stime)));
    for (int kind = 0; kind < KINDS; kind++)
        fwrite(samples[kind].ns, sizeof *samples[kind].ns, samples[kind].count, stdout);
    return 0;
}
