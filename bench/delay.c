/* delay.c - a proxy that makes loopback a network: latency, bandwidth, and a count of what passes
 *
 *     delay PORT ROUND_TRIP_SECONDS BYTES_PER_SECOND        0 bytes per second: no limit
 *
 *     client  <---- half of the round trip, one line for all answers ----  delay  <----  server at PORT
 *             ----- half of the round trip -------------------------------
 *
 * Each piece of a stream is passed on when it is due: when it came, plus the time that the line takes for the pieces of
 * any answer before it and for itself, plus the delay. So what is under way at the same time shares the line and nothing
 * else. A new connection is made at once, and its first request waits for the round trip that this takes.
 *
 * The first line of output is the port of its own; each line of input is answered by [requests, bytes of answers,
 * connections, bytes of requests] since the last. Requests are counted by the ends of their heads, after which
 * Content-Length bytes are their bodies. Bytes are counted as they leave, heads included. It ends with its input.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PIECE_NBYTES (128u << 10)
#define QUEUE_NBYTES (16u << 20) /* of one stream, under way */

struct piece {
    struct piece *next;
    double due;
    size_t done, nbytes; /* no bytes: the end of the stream */
    char data[];
};

struct end {
    int fd;
    uint32_t events; /* that are looked for */
};

struct stream {
    struct end *from, *to;
    struct piece *first, **last;
    size_t nbytes;
    double begins; /* when the connection stands */
    bool is_answer, has_ended, is_over, is_blocked; /* no more comes; all has left; the other side does not take it */
    char head[16384];     /* of a request, as far as it has come */
    size_t n_head;
    uint64_t body_nbytes; /* that are still to come */
};

struct connection {
    struct connection *next;
    struct end client, server;
    struct stream there, back;
    bool is_ready; /* something may have come */
};

static struct connection *connections;
static int epoll, port_behind;
static double delay, seconds_per_byte, line_is_free;
static uint64_t n_requests, n_bytes, n_connections, n_sent_bytes;

static void
require(bool fine, const char *what)
{
    if (!fine) {
        perror(what);
        exit(1);
    }
}

static double
now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int
opened(int port, bool is_server)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    require(fd >= 0 && !(is_server ? bind : connect)(fd, (void *)&at, sizeof(at)), "loopback");
    return fd;
}

static void
watch(int fd, int how, uint32_t events, void *who)
{
    struct epoll_event wanted = { .events = events, .data = { .ptr = who } };

    require(!epoll_ctl(epoll, how, fd, &wanted), "epoll_ctl");
}

static void
begin(int listener)
{
    struct connection *c = calloc(1, sizeof(*c));
    int one = 1;

    require(c, "calloc");
    c->client.fd = accept(listener, NULL, NULL);
    c->server.fd = opened(port_behind, false);
    c->there = (struct stream){ .from = &c->client, .to = &c->server, .last = &c->there.first };
    c->back = (struct stream){ .from = &c->server, .to = &c->client, .last = &c->back.first, .is_answer = true };
    for (int i = 0; i < 2; i++) {
        struct end *end = i ? &c->server : &c->client;

        require(end->fd >= 0, "accept");
        setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        watch(end->fd, EPOLL_CTL_ADD, end->events = EPOLLIN, c);
    }
    c->there.begins = now() + 2 * delay;
    c->next = connections;
    connections = c;
    n_connections++;
}

/* Return the length of the body that follows a head. */
static uint64_t
body_of(const char *head)
{
    static const char name[] = "\r\ncontent-length:";
    const char *at = strcasestr(head, name);

    return at ? strtoull(at + sizeof(name) - 1, NULL, 10) : 0;
}

static void
count_requests(struct stream *s, const struct piece *p)
{
    for (size_t i = 0; i < p->nbytes; i++) {
        if (s->body_nbytes) {
            uint64_t n = p->nbytes - i < s->body_nbytes ? p->nbytes - i : s->body_nbytes;

            s->body_nbytes -= n;
            i += n - 1;
            continue;
        }
        require(s->n_head < sizeof(s->head) - 1, "the head of a request is too long");
        s->head[s->n_head++] = p->data[i];
        s->head[s->n_head] = '\0';
        if (s->n_head >= 4 && !memcmp(s->head + s->n_head - 4, "\r\n\r\n", 4)) {
            s->body_nbytes = body_of(s->head);
            s->n_head = 0;
            n_requests++;
        }
    }
}

/* Take what has come, as much as may be under way. */
static void
take(struct stream *s)
{
    while (!s->has_ended && s->nbytes < QUEUE_NBYTES) {
        struct piece *p = malloc(sizeof(*p) + PIECE_NBYTES);
        ssize_t n;

        require(p, "malloc");
        n = recv(s->from->fd, p->data, PIECE_NBYTES, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            free(p);
            return;
        }
        p->next = NULL;
        p->done = 0;
        p->nbytes = n < 0 ? 0 : (size_t)n; /* an error is an end too */
        p->due = now();
        if (s->is_answer) {
            line_is_free = (line_is_free > p->due ? line_is_free : p->due) + seconds_per_byte * (double)p->nbytes;
            p->due = line_is_free;
        } else {
            count_requests(s, p);
            p->due = p->due > s->begins ? p->due : s->begins;
        }
        p->due += delay;
        s->has_ended = !p->nbytes;
        s->nbytes += p->nbytes;
        *s->last = p;
        s->last = &p->next;
    }
}

/* Pass on what is due; return when the next will be. */
static double
give(struct stream *s, double time)
{
    s->is_blocked = false;
    while (s->first && s->first->due <= time) {
        struct piece *p = s->first;
        ssize_t n = 0;

        if (p->nbytes)
            n = send(s->to->fd, p->data + p->done, p->nbytes - p->done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            s->is_blocked = true;
            return 1e30;
        }
        if (n < 0)
            n = (ssize_t)(p->nbytes - p->done); /* no caller waits for it any more */
        else
            *(s->is_answer ? &n_bytes : &n_sent_bytes) += (uint64_t)n;
        p->done += (size_t)n;
        s->nbytes -= (size_t)n;
        if (p->done < p->nbytes)
            continue;
        if (!p->nbytes) {
            shutdown(s->to->fd, SHUT_WR);
            s->is_over = true;
        }
        s->first = p->next;
        if (!s->first)
            s->last = &s->first;
        free(p);
    }
    return s->first ? s->first->due : 1e30;
}

static void
look_for(struct end *end, const struct stream *in, const struct stream *out, void *who)
{
    uint32_t events = (!in->has_ended && in->nbytes < QUEUE_NBYTES ? EPOLLIN : 0u) | (out->is_blocked ? EPOLLOUT : 0u);

    if (events != end->events)
        watch(end->fd, EPOLL_CTL_MOD, end->events = events, who);
}

/* Work on all connections; return when the next piece is due. */
static double
pass_on(void)
{
    double next = 1e30;

    for (struct connection **place = &connections, *c = *place; c; c = *place) {
        if (c->is_ready) {
            take(&c->there);
            take(&c->back);
            c->is_ready = false;
        }
        for (int i = 0; i < 2; i++) {
            double due = give(i ? &c->back : &c->there, now());

            next = due < next ? due : next;
        }
        if (c->there.is_over && c->back.is_over) {
            close(c->client.fd);
            close(c->server.fd);
            *place = c->next;
            free(c);
            continue;
        }
        look_for(&c->client, &c->there, &c->back, c);
        look_for(&c->server, &c->back, &c->there, c);
        place = &c->next;
    }
    return next;
}

int
main(int argc, char **argv)
{
    struct sockaddr_in at;
    socklen_t n = sizeof(at);
    int listener = opened(0, true);
    struct epoll_event events[64];
    char line[64];

    if (argc != 4)
        return 2;
    port_behind = atoi(argv[1]);
    delay = atof(argv[2]) / 2;
    seconds_per_byte = atof(argv[3]) > 0 ? 1 / atof(argv[3]) : 0;
    require(!listen(listener, 1024) && !getsockname(listener, (void *)&at, &n), "listen");
    require((epoll = epoll_create1(0)) >= 0, "epoll_create1");
    watch(listener, EPOLL_CTL_ADD, EPOLLIN, &listener);
    watch(STDIN_FILENO, EPOLL_CTL_ADD, EPOLLIN, line);
    printf("%d\n", ntohs(at.sin_port));
    for (;;) {
        double wait, next = pass_on();
        struct timespec most;
        int n_events;

        fflush(stdout);
        wait = next < 1e29 ? next - now() : 3600;
        wait = wait > 0 ? wait : 0;
        most.tv_sec = (time_t)wait;
        most.tv_nsec = (long)(1e9 * (wait - (double)most.tv_sec));
        n_events = epoll_pwait2(epoll, events, 64, &most, NULL);
        for (int i = 0; i < n_events; i++) {
            if (events[i].data.ptr == &listener) {
                begin(listener);
            } else if (events[i].data.ptr == line) {
                if (read(STDIN_FILENO, line, sizeof(line)) <= 0)
                    return 0;
                printf("[%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 "]\n", n_requests, n_bytes, n_connections,
                       n_sent_bytes);
                n_requests = n_bytes = n_connections = n_sent_bytes = 0;
            } else {
                ((struct connection *)events[i].data.ptr)->is_ready = true;
            }
        }
    }
}
