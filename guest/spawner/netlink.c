/* Links, addresses and routes by netlink, in the network namespace of the caller. IPv4 only. */
#include "spawner.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct message {
    struct nlmsghdr header;
    char body[512];
};

static void *extend(struct message *m, const void *data, size_t size)
{
    char *at = (char *)m + NLMSG_ALIGN(m->header.nlmsg_len);
    if (at + size > (char *)m + sizeof *m)
        return NULL;
    if (data != NULL)
        memcpy(at, data, size);
    m->header.nlmsg_len = (uint32_t)(at + size - (char *)m);
    return at;
}

static struct message start(uint16_t type, uint16_t flags, const void *head, size_t size)
{
    struct message m = {.header = {.nlmsg_len = NLMSG_HDRLEN, .nlmsg_type = type}};
    m.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    extend(&m, head, size);
    return m;
}

static struct rtattr *put(struct message *m, uint16_t type, const void *data, size_t size)
{
    struct rtattr attribute = {.rta_len = (uint16_t)RTA_LENGTH(size), .rta_type = type};
    struct rtattr *at = extend(m, &attribute, sizeof attribute);
    extend(m, data, size);
    return at;
}

static void close_nest(struct message *m, struct rtattr *nest)
{
    nest->rta_len = (uint16_t)((char *)m + NLMSG_ALIGN(m->header.nlmsg_len) - (char *)nest);
}

/* Send one request and return what the kernel says; -1 and errno if it refuses. */
static int talk(struct message *m)
{
    char answer[1024];
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE), error = 0;
    if (fd < 0)
        return -1;
    ssize_t n = sendto(fd, m, m->header.nlmsg_len, 0, (struct sockaddr *)&kernel, sizeof kernel);
    if (n >= 0)
        n = recv(fd, answer, sizeof answer, 0);
    if (n < 0)
        error = errno;
    const struct nlmsghdr *header = (const struct nlmsghdr *)answer;
    if (n >= (ssize_t)(sizeof *header + sizeof(int)) && header->nlmsg_type == NLMSG_ERROR)
        error = -*(const int *)NLMSG_DATA(header);
    close(fd);
    errno = error;
    return error == 0 ? 0 : -1;
}

/* A veth pair: one end here, the other as eth0 in the network namespace of that process. */
int link_create(const char *name, pid_t peer_of)
{
    struct ifinfomsg info = {.ifi_family = AF_UNSPEC};
    struct message m = start(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &info, sizeof info);
    put(&m, IFLA_IFNAME, name, strlen(name) + 1);
    struct rtattr *link = put(&m, IFLA_LINKINFO, NULL, 0);
    put(&m, IFLA_INFO_KIND, "veth", 5);
    struct rtattr *data = put(&m, IFLA_INFO_DATA, NULL, 0);
    struct rtattr *peer = put(&m, VETH_INFO_PEER, &info, sizeof info);
    uint32_t pid = (uint32_t)peer_of;
    put(&m, IFLA_IFNAME, "eth0", 5);
    put(&m, IFLA_NET_NS_PID, &pid, sizeof pid);
    close_nest(&m, peer);
    close_nest(&m, data);
    close_nest(&m, link);
    return talk(&m);
}

int link_delete(const char *name)
{
    struct ifinfomsg info = {.ifi_family = AF_UNSPEC};
    struct message m = start(RTM_DELLINK, 0, &info, sizeof info);
    put(&m, IFLA_IFNAME, name, strlen(name) + 1);
    return talk(&m);
}

int link_set_up(const char *name)
{
    struct ifinfomsg info = {.ifi_family = AF_UNSPEC, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    struct message m = start(RTM_NEWLINK, 0, &info, sizeof info);
    put(&m, IFLA_IFNAME, name, strlen(name) + 1);
    return talk(&m);
}

int address_add(const char *link, uint32_t address)
{
    uint32_t bytes = htonl(address);
    struct ifaddrmsg info = {.ifa_family = AF_INET, .ifa_prefixlen = 32, .ifa_index = if_nametoindex(link)};
    struct message m = start(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &info, sizeof info);
    put(&m, IFA_LOCAL, &bytes, sizeof bytes);
    put(&m, IFA_ADDRESS, &bytes, sizeof bytes);
    return talk(&m);
}

/* via 0: straight out of the link. */
int route_add(const char *link, uint32_t to, unsigned bits, uint32_t via)
{
    uint32_t destination = htonl(to), gateway = htonl(via), index = if_nametoindex(link);
    struct rtmsg info = {.rtm_family = AF_INET, .rtm_dst_len = (unsigned char)bits, .rtm_table = RT_TABLE_MAIN,
                         .rtm_protocol = RTPROT_STATIC, .rtm_type = RTN_UNICAST,
                         .rtm_scope = via == 0 ? RT_SCOPE_LINK : RT_SCOPE_UNIVERSE,
                         .rtm_flags = via == 0 ? 0 : RTNH_F_ONLINK};
    struct message m = start(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &info, sizeof info);
    if (bits > 0)
        put(&m, RTA_DST, &destination, sizeof destination);
    if (via != 0)
        put(&m, RTA_GATEWAY, &gateway, sizeof gateway);
    put(&m, RTA_OIF, &index, sizeof index);
    return talk(&m);
}

/* A link and its routes for a sandbox that lives: this thread goes in, and comes back or ends the process. */
int inside_network(pid_t pid, uint32_t address, uint32_t gateway)
{
    char path[48];
    snprintf(path, sizeof path, "/proc/%d/ns/net", pid);
    int own = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC), there = open(path, O_RDONLY | O_CLOEXEC);
    int result = own < 0 || there < 0 || setns(there, CLONE_NEWNET) != 0 ? -1 : 0;
    if (result == 0) {
        result = child_network(address, gateway, true);
        int error = errno;
        if (setns(own, CLONE_NEWNET) != 0)
            _exit(73);
        errno = error;
    }
    if (own >= 0)
        close(own);
    if (there >= 0)
        close(there);
    return result;
}

/* The inside: lo is up in every mode. There is no IPv6 way out, so eth0 pretends none. */
int child_network(uint32_t address, uint32_t gateway, bool public)
{
    if (link_set_up("lo") != 0)
        return -1;
    if (!public)
        return 0;
    put_text_at(-1, "/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "1"); /* absent where the kernel has no IPv6 */
    if (address_add("eth0", address) != 0 || link_set_up("eth0") != 0)
        return -1;
    return route_add("eth0", gateway, 32, 0) == 0 && route_add("eth0", 0, 0, gateway) == 0 ? 0 : -1;
}
