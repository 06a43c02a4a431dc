/* The NPU's lower half: the driver's ABI, packets, the model's rules, memory, queues, admission, kernel sets. */
#include "npu_rig.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "dev/npu/npu_set.h"

/* ---- ABI -------------------------------------------------------------------------------------- */

/* Numbers as Debian's linux-libc-dev 7.3.4 has them; the header asserts the same when it is compiled. */
static void test_ioctl_numbers(void **state)
{
    static const struct { uint32_t ours, theirs; } t[] = {
        {OB_NPU_IOC_CREATE_HWCTX, 0xc0386440}, {OB_NPU_IOC_DESTROY_HWCTX, 0xc0086441}, {OB_NPU_IOC_CONFIG_HWCTX, 0xc0186442},
        {OB_NPU_IOC_CREATE_BO, 0xc0206443}, {OB_NPU_IOC_GET_BO_INFO, 0xc0306444}, {OB_NPU_IOC_SYNC_BO, 0xc0186445},
        {OB_NPU_IOC_EXEC_CMD, 0xc0386446}, {OB_NPU_IOC_GET_INFO, 0xc0106447}, {OB_NPU_IOC_SET_STATE, 0xc0106448},
        {OB_NPU_IOC_WAIT_CMD, 0x40106449}, {OB_NPU_IOC_GET_ARRAY, 0xc018644a}, {OB_NPU_IOC_VERSION, 0xc0406400},
        {OB_NPU_IOC_GEM_CLOSE, 0x40086409}, {OB_NPU_IOC_SYNCOBJ_CREATE, 0xc00864bf}, {OB_NPU_IOC_SYNCOBJ_DESTROY, 0xc00864c0},
        {OB_NPU_IOC_SYNCOBJ_TRANSFER, 0xc02064cc}, {OB_NPU_IOC_SYNCOBJ_TIMELINE_WAIT, 0xc03064ca},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) assert_int_equal(t[i].ours, t[i].theirs);
    assert_int_equal(offsetof(ob_npu_create_hwctx, n_tiles), 36);
    assert_int_equal(offsetof(ob_npu_create_hwctx, syncobj), 52);
    assert_int_equal(offsetof(ob_npu_get_bo_info, xdna_addr), 40);
    assert_int_equal(offsetof(ob_npu_exec_cmd, seq), 48);
    assert_int_equal(offsetof(ob_npu_metadata, core), 16);
    assert_int_equal(offsetof(ob_npu_packet_elf, text_size), 32);
    assert_int_equal(OB_NPU_CHAIN_MAX, 73);
}

/* ---- packets ---------------------------------------------------------------------------------- */

static void test_packet_elf(void **state)
{
    static const uint32_t golden[12] = {0x3b00b001, 1, 0x04008000, 0, 0, 0, 0, 0, 0x100, 0, 0, 0};
    uint32_t w[12];
    (void)state;
    assert_int_equal(ob_npu_packet_make_elf(w, 12, 0x04008000, 0x100), 12);
    assert_memory_equal(w, golden, sizeof golden);
    assert_int_equal(ob_npu_packet_make_elf(w, 11, 0x04008000, 0x100), 0);
    assert_int_equal(ob_npu_packet_make_elf(w, 12, 0x04008001, 0x100), 0);
    assert_int_equal(ob_npu_packet_make_elf(w, 12, 0x04008000, 0), 0);
    assert_int_equal(ob_npu_packet_make_elf(w, 12, 0x04008000, 6), 0);
}

static void test_packet_npu(void **state)
{
    /* state 1, 7 words, opcode 20, type 3; CU 0; text; bytes; no properties; two argument words */
    static const uint32_t golden[8] = {0x3a007001, 1, 0x04010000, 2, 0x40, 0, 0xdeadbeef, 7}, args[2] = {0xdeadbeef, 7};
    uint32_t w[40], many[27] = {0};
    (void)state;
    assert_int_equal(ob_npu_packet_make_npu(w, 40, 1, 0x204010000, 0x40, args, 2), 8);
    assert_memory_equal(w, golden, sizeof golden);
    assert_int_equal(ob_npu_packet_make_npu(w, 40, 1, 0x04010000, 0x40, many, 26), 32);
    assert_int_equal(ob_npu_packet_make_npu(w, 40, 1, 0x04010000, 0x40, many, 27), 0); /* the unified format's most */
    assert_int_equal(ob_npu_packet_make_npu(w, 40, 0, 0x04010000, 0x40, args, 2), 0);
}

static void test_packet_cu(void **state)
{
    /* opcode 0: u64 3, text address, text words, then buffers at 0x14, 0x1c of the register map */
    static const uint32_t golden[11] = {0x3000a001, 2, 3, 0, 0x04020000, 0, 16, 0x1000, 0x7f, 0x2000, 0};
    static const uint64_t buffers[2] = {0x7f00001000, 0x2000};
    uint32_t w[16];
    (void)state;
    assert_int_equal(ob_npu_packet_make_cu(w, 16, 2, 0x04020000, 16, buffers, 2), 11);
    assert_memory_equal(w, golden, sizeof golden);
}

static void test_packet_chain(void **state)
{
    /* opcode 19, no CU mask; count, submit index, error index, 3 reserved; 64-bit handles */
    static const uint32_t golden[11] = {0x0980a001, 2, 0, 0, 0, 0, 0, 5, 0, 9, 0}, handles[2] = {5, 9};
    uint32_t w[256], many[74] = {0};
    (void)state;
    assert_int_equal(ob_npu_packet_make_chain(w, 256, handles, 2), 11);
    assert_memory_equal(w, golden, sizeof golden);
    assert_int_equal(ob_npu_packet_make_chain(w, 256, many, 73), 7 + 146);
    assert_int_equal(ob_npu_packet_make_chain(w, 256, many, 74), 0);
    assert_int_equal(ob_npu_packet_make_chain(w, 256, many, 0), 0);
}

static void test_packet_result(void **state)
{
    uint32_t chain[11] = {0x0980a000, 40, 0, 36, 0, 0, 0, 5, 0, 9, 0};
    static const uint32_t health[9] = {0x3b00b008, 1, 0, 12, 0x28b060ad, 3, 4, 5, 6}, none[9] = {0x3b00b005, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u};
    ob_err err;
    (void)state;
    chain[0] = 0x0980a004;
    assert_int_equal(ob_npu_packet_result(chain, health, 9, &err), OB_OK);
    chain[0] = 0x0980a008;
    assert_int_equal(ob_npu_packet_result(chain, health, 9, &err), OB_E_TIMEOUT);
    assert_non_null(strstr(err.text, "command 37 of a chain of 40"));
    assert_non_null(strstr(err.text, "operation 12 "));
    assert_non_null(strstr(err.text, "fatal error 3"));
    chain[0] = 0x0980a005;
    assert_int_equal(ob_npu_packet_result(chain, none, 9, &err), OB_E_DEVICE);
    assert_null(strstr(err.text, "operation"));
    chain[0] = 0x0980a009;
    assert_int_equal(ob_npu_packet_result(chain, none, 9, &err), OB_E_DEVICE_LOST);
    chain[0] = 0x0980a001;
    assert_int_equal(ob_npu_packet_result(chain, none, 9, &err), OB_E_DEVICE);
    assert_non_null(strstr(err.text, "did not take"));
    chain[0] = 0x0980a003;
    assert_int_equal(ob_npu_packet_result(chain, none, 9, &err), OB_E_DEVICE);
    assert_non_null(strstr(err.text, "running"));
}

/* ---- the driver's rules ----------------------------------------------------------------------- */

typedef struct raw { rig r; int fd; } raw;

static void raw_open(raw *w, ob_npu_soft_options opt)
{
    rig_soft(&w->r, opt);
    w->fd = w->r.os->api->open(w->r.os, "npu-soft");
    assert_true(w->fd >= 0);
}
static void raw_close(raw *w)
{
    assert_int_equal(w->r.os->api->close(w->r.os, w->fd), 0);
    ob_npu_soft_free(w->r.soft);
}
static int call(raw *w, uint32_t request, void *arg) { return ob_npu_ioctl(w->r.os, w->fd, request, arg); }

static int make_bo(raw *w, uint32_t type, uint64_t n, uint32_t *handle)
{
    ob_npu_create_bo a = {.size = n, .type = type};
    const int r = call(w, OB_NPU_IOC_CREATE_BO, &a);
    *handle = a.handle;
    return r;
}
static ob_npu_get_bo_info info_of(raw *w, uint32_t handle)
{
    ob_npu_get_bo_info i = {.handle = handle};
    assert_int_equal(call(w, OB_NPU_IOC_GET_BO_INFO, &i), 0);
    return i;
}
static uint8_t *map_bo(raw *w, uint32_t handle, void *at, uint64_t n)
{
    void *p = NULL;
    assert_int_equal(w->r.os->api->mmap(w->r.os, at, n, w->fd, info_of(w, handle).map_offset, &p), 0);
    return p;
}
static int make_ctx(raw *w, uint32_t n_tiles, ob_npu_create_hwctx *out)
{
    static ob_npu_qos qos;
    *out = (ob_npu_create_hwctx){.qos = (uint64_t)(uintptr_t)&qos, .n_tiles = n_tiles};
    return call(w, OB_NPU_IOC_CREATE_HWCTX, out);
}
/* Maps a heap of n chunks where it must be. */
static uint8_t *make_heap(raw *w, int n)
{
    void *p;
    assert_int_equal(w->r.os->api->mmap(w->r.os, NULL, OB_NPU_HEAP_MAX + OB_NPU_HEAP_CHUNK, -1, 0, &p), 0);
    uint8_t *base = (uint8_t *)(((uintptr_t)p + OB_NPU_HEAP_CHUNK - 1) & ~(uintptr_t)(OB_NPU_HEAP_CHUNK - 1));
    for (int i = 0; i < n; i++) {
        uint32_t h;
        assert_int_equal(make_bo(w, OB_NPU_BO_DEV_HEAP, OB_NPU_HEAP_CHUNK, &h), 0);
        (void)map_bo(w, h, base + (size_t)i * OB_NPU_HEAP_CHUNK, OB_NPU_HEAP_CHUNK);
    }
    return base;
}

static void test_must_be_zero(void **state)
{
    raw w;
    uint32_t h;
    (void)state;
    raw_open(&w, rig_defaults(NULL));
    ob_npu_create_bo bo = {.flags = 1, .size = 4096, .type = OB_NPU_BO_SHARE};
    assert_int_equal(call(&w, OB_NPU_IOC_CREATE_BO, &bo), -EINVAL);
    bo = (ob_npu_create_bo){.size = 4096, .type = 9};
    assert_int_equal(call(&w, OB_NPU_IOC_CREATE_BO, &bo), -EINVAL);
    assert_int_equal(make_bo(&w, OB_NPU_BO_SHARE, 0, &h), -EINVAL);
    assert_int_equal(make_bo(&w, OB_NPU_BO_SHARE, 4096, &h), 0);
    ob_npu_get_bo_info i = {.handle = h, .pad = 1};
    assert_int_equal(call(&w, OB_NPU_IOC_GET_BO_INFO, &i), -EINVAL);
    i = (ob_npu_get_bo_info){.handle = h + 1};
    assert_int_equal(call(&w, OB_NPU_IOC_GET_BO_INFO, &i), -ENOENT);
    ob_npu_destroy_hwctx d = {.handle = 1, .pad = 1};
    assert_int_equal(call(&w, OB_NPU_IOC_DESTROY_HWCTX, &d), -EINVAL);
    ob_npu_exec_cmd e = {.n_cmds = 2, .cmds = h};
    assert_int_equal(call(&w, OB_NPU_IOC_EXEC_CMD, &e), -EINVAL);
    e = (ob_npu_exec_cmd){.n_cmds = 1, .cmds = h, .type = 1};
    assert_int_equal(call(&w, OB_NPU_IOC_EXEC_CMD, &e), -EINVAL);
    ob_npu_get_info set = {0};
    assert_int_equal(call(&w, OB_NPU_IOC_SET_STATE, &set), -EACCES);
    assert_int_equal(call(&w, 0xdead, &set), -ENOTTY);
    raw_close(&w);
}

static void test_heap_rules(void **state)
{
    raw w;
    uint32_t h, d;
    ob_npu_create_hwctx c;
    (void)state;
    raw_open(&w, rig_defaults(NULL));
    assert_int_equal(make_ctx(&w, 32, &c), -ENOENT); /* heap first */
    assert_int_equal(make_bo(&w, OB_NPU_BO_DEV, 4096, &d), -EAGAIN);
    assert_int_equal(make_bo(&w, OB_NPU_BO_DEV_HEAP, 4096, &h), -EINVAL);
    assert_int_equal(make_bo(&w, OB_NPU_BO_DEV_HEAP, OB_NPU_HEAP_CHUNK, &h), 0);
    assert_int_equal(make_ctx(&w, 32, &c), -EAGAIN); /* there, but not mapped */
    assert_int_equal(make_bo(&w, OB_NPU_BO_DEV, 4096, &d), -EAGAIN);
    void *room;
    assert_int_equal(w.r.os->api->mmap(w.r.os, NULL, 3 * OB_NPU_HEAP_CHUNK, -1, 0, &room), 0);
    uint8_t *aligned = (uint8_t *)(((uintptr_t)room + OB_NPU_HEAP_CHUNK - 1) & ~(uintptr_t)(OB_NPU_HEAP_CHUNK - 1));
    uint8_t *p = map_bo(&w, h, aligned + 4096, OB_NPU_HEAP_CHUNK);
    assert_int_equal(make_ctx(&w, 32, &c), -EINVAL); /* not at a multiple of 64 MiB */
    assert_int_equal(w.r.os->api->munmap(w.r.os, p, OB_NPU_HEAP_CHUNK), 0);
    (void)map_bo(&w, h, aligned, OB_NPU_HEAP_CHUNK);
    assert_int_equal(make_ctx(&w, 0, &c), -EINVAL);
    assert_int_equal(make_ctx(&w, 30, &c), -EINVAL); /* no whole columns */
    assert_int_equal(make_ctx(&w, 36, &c), -EINVAL); /* nine of them */
    assert_int_equal(make_ctx(&w, 32, &c), 0);
    assert_int_not_equal(c.handle, 0);
    assert_int_not_equal(c.syncobj, 0);
    assert_int_equal(info_of(&w, h).xdna_addr, OB_NPU_HEAP_BASE);
    raw_close(&w);
}

static void test_heap_grows(void **state)
{
    raw w;
    uint32_t a, b, h;
    (void)state;
    raw_open(&w, rig_defaults(NULL));
    (void)make_heap(&w, 1);
    assert_int_equal(make_bo(&w, OB_NPU_BO_DEV, 100, &a), 0);
    assert_int_equal(make_bo(&w, OB_NPU_BO_DEV, 4097, &b), 0);
    const ob_npu_get_bo_info ia = info_of(&w, a), ib = info_of(&w, b);
    assert_int_equal(ia.map_offset, OB_NPU_NO_ADDR);
    assert_int_equal(ia.xdna_addr % OB_NPU_DEV_ALIGN, 0);
    assert_int_equal(ib.xdna_addr - ia.xdna_addr, OB_NPU_DEV_ALIGN);
    assert_int_equal(make_bo(&w, OB_NPU_BO_DEV, OB_NPU_HEAP_CHUNK, &a), -EAGAIN); /* grow, and ask again */
    assert_int_equal(make_bo(&w, OB_NPU_BO_DEV, OB_NPU_HEAP_MAX, &a), -ENOSPC);
    for (int i = 1; i < 8; i++) assert_int_equal(make_bo(&w, OB_NPU_BO_DEV_HEAP, OB_NPU_HEAP_CHUNK, &h), 0);
    assert_int_equal(make_bo(&w, OB_NPU_BO_DEV_HEAP, OB_NPU_HEAP_CHUNK, &h), -ENOSPC);
    raw_close(&w);
    ob_npu_soft_options old = rig_defaults(NULL);
    old.firmware = (ob_npu_firmware){6, 17, 0, 0};
    raw_open(&w, old);
    (void)make_heap(&w, 1);
    assert_int_equal(make_bo(&w, OB_NPU_BO_DEV_HEAP, OB_NPU_HEAP_CHUNK, &h), -EOPNOTSUPP);
    raw_close(&w);
}

static void test_address_modes(void **state)
{
    raw w;
    uint32_t h;
    (void)state;
    for (int iova = 0; iova < 2; iova++) {
        ob_npu_soft_options opt = rig_defaults(NULL);
        opt.iova = iova;
        raw_open(&w, opt);
        assert_int_equal(make_bo(&w, OB_NPU_BO_SHARE, 8192, &h), 0);
        const uint64_t before = info_of(&w, h).xdna_addr;
        uint8_t *p = map_bo(&w, h, NULL, 8192);
        const ob_npu_get_bo_info i = info_of(&w, h);
        assert_true(iova ? before == i.xdna_addr : before == OB_NPU_NO_ADDR);
        assert_int_equal(i.xdna_addr == (uint64_t)(uintptr_t)p, !iova);
        assert_int_equal(w.r.os->api->munmap(w.r.os, p, 8192), 0);
        raw_close(&w);
    }
}

static void test_context_limits(void **state)
{
    raw w;
    ob_npu_create_hwctx c, first;
    (void)state;
    for (int xdna1 = 0; xdna1 < 2; xdna1++) {
        ob_npu_soft_options opt = rig_defaults(NULL);
        opt.gen = xdna1 ? OB_NPU_1 : OB_NPU_4;
        raw_open(&w, opt);
        (void)make_heap(&w, 1);
        const int limit = xdna1 ? 6 : 16;
        for (int i = 0; i < limit; i++) assert_int_equal(make_ctx(&w, 16, i ? &c : &first), 0);
        assert_int_equal(make_ctx(&w, 16, &c), -ENOSPC);
        ob_npu_destroy_hwctx d = {.handle = first.handle};
        assert_int_equal(call(&w, OB_NPU_IOC_DESTROY_HWCTX, &d), 0);
        assert_int_equal(call(&w, OB_NPU_IOC_DESTROY_HWCTX, &d), -EINVAL);
        assert_int_equal(make_ctx(&w, 16, &c), 0);
        raw_close(&w);
    }
}

/* A command buffer, a context and a text: what submissions need. */
typedef struct sub { raw w; uint8_t *heap, *cmd; uint32_t cmd_handle; ob_npu_create_hwctx ctx; ob_npu_get_bo_info text; } sub;

static void sub_open(sub *s, ob_npu_soft_options opt)
{
    uint32_t t;
    raw_open(&s->w, opt);
    s->heap = make_heap(&s->w, 1);
    assert_int_equal(make_bo(&s->w, OB_NPU_BO_DEV, 4096, &t), 0);
    s->text = info_of(&s->w, t);
    uint32_t *words = (uint32_t *)(void *)(s->heap + (s->text.xdna_addr - OB_NPU_HEAP_BASE));
    words[0] = RIG_SLEEP;
    words[1] = 3;
    s->w.r.os->api->flush(s->w.r.os, words, 8);
    assert_int_equal(make_bo(&s->w, OB_NPU_BO_CMD, 4096, &s->cmd_handle), 0);
    s->cmd = map_bo(&s->w, s->cmd_handle, NULL, 4096);
    assert_int_equal(make_ctx(&s->w, 16, &s->ctx), 0);
}
static void put_packet(sub *s, uint8_t *cmd, const uint32_t *words, size_t n)
{
    memcpy(cmd, words, n * 4);
    s->w.r.os->api->flush(s->w.r.os, cmd, n * 4);
}
static uint64_t sub_exec(sub *s, uint32_t handle)
{
    ob_npu_exec_cmd e = {.hwctx = s->ctx.handle, .cmds = handle, .n_cmds = 1, .seq = 99};
    assert_int_equal(call(&s->w, OB_NPU_IOC_EXEC_CMD, &e), 0);
    return e.seq;
}
static int sub_wait(sub *s, uint64_t point, int64_t ms)
{
    ob_npu_timeline_wait t = {.handles = (uint64_t)(uintptr_t)&s->ctx.syncobj, .points = (uint64_t)(uintptr_t)&point, .n_handles = 1,
                              .deadline_ns = s->w.r.os->api->now_ns(s->w.r.os) + ms * 1000000};
    return call(&s->w, OB_NPU_IOC_SYNCOBJ_TIMELINE_WAIT, &t);
}
static uint32_t sub_state(sub *s, uint8_t *cmd)
{
    uint32_t h;
    s->w.r.os->api->invalidate(s->w.r.os, cmd, 4096);
    memcpy(&h, cmd, 4);
    return ob_npu_header_state(h);
}
static size_t elf_packet(const sub *s, uint32_t *w) { return ob_npu_packet_make_elf(w, 12, s->text.xdna_addr, 8); }

static void test_sequence_and_point_zero(void **state)
{
    sub s;
    uint32_t w[12];
    (void)state;
    sub_open(&s, rig_defaults(NULL));
    assert_int_equal(sub_wait(&s, 0, 100), -EINVAL); /* nothing was submitted */
    put_packet(&s, s.cmd, w, elf_packet(&s, w));
    assert_int_equal(sub_exec(&s, s.cmd_handle), 0); /* from 0 */
    assert_int_equal(sub_exec(&s, s.cmd_handle), 1);
    assert_int_equal(sub_wait(&s, 2, 100), -EINVAL);
    assert_int_equal(ob_npu_soft_counts_get(s.w.r.soft).n_cmds, 0); /* as late as allowed */
    assert_int_equal(sub_wait(&s, 0, 100), 0);                      /* point 0 is the last fence: it waited for both */
    assert_int_equal(ob_npu_soft_counts_get(s.w.r.soft).n_cmds, 2);
    assert_int_equal(ob_npu_soft_counts_get(s.w.r.soft).now_ns, 6000000);
    assert_int_equal(sub_state(&s, s.cmd), OB_NPU_STATE_COMPLETED);
    raw_close(&s.w);
}

static void test_four_in_flight(void **state)
{
    sub s;
    uint32_t w[12];
    (void)state;
    sub_open(&s, rig_defaults(NULL));
    put_packet(&s, s.cmd, w, elf_packet(&s, w));
    for (uint64_t i = 0; i < 4; i++) assert_int_equal(sub_exec(&s, s.cmd_handle), i);
    assert_int_equal(ob_npu_soft_counts_get(s.w.r.soft).n_cmds, 0);
    assert_int_equal(sub_exec(&s, s.cmd_handle), 4); /* came back when the oldest was over */
    assert_int_equal(ob_npu_soft_counts_get(s.w.r.soft).n_cmds, 1);
    assert_int_equal(sub_wait(&s, 3, 1000), 0);
    assert_int_equal(ob_npu_soft_counts_get(s.w.r.soft).n_cmds, 4);
    raw_close(&s.w);
}

/* A chain of n commands from buffers of their own; the state its packet ends with. */
static uint32_t run_chain(sub *s, const uint32_t *packet, size_t n_words, const uint32_t *odd, size_t n_odd, uint32_t n)
{
    uint32_t handles[80], chain[256], h;
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(make_bo(&s->w, OB_NPU_BO_CMD, 4096, &handles[i]), 0);
        uint8_t *cmd = map_bo(&s->w, handles[i], NULL, 4096);
        if (i && odd) put_packet(s, cmd, odd, n_odd);
        else put_packet(s, cmd, packet, n_words);
    }
    const size_t len = ob_npu_packet_make_chain(chain, 256, handles, n < 74 ? n : 73);
    if (n > 73) chain[1] = n; /* more than any driver takes */
    assert_int_equal(make_bo(&s->w, OB_NPU_BO_CMD, 4096, &h), 0);
    uint8_t *cmd = map_bo(&s->w, h, NULL, 4096);
    put_packet(s, cmd, chain, len);
    const uint64_t seq = sub_exec(s, h);
    assert_int_equal(sub_wait(s, seq, 3000), 0);
    return sub_state(s, cmd);
}

static void test_chain_rules(void **state)
{
    sub s;
    uint32_t w[12], other[40], args[26] = {0};
    (void)state;
    sub_open(&s, rig_defaults(NULL));
    const size_t n = elf_packet(&s, w);
    assert_int_equal(run_chain(&s, w, n, NULL, 0, 73), OB_NPU_STATE_COMPLETED);
    assert_int_equal(ob_npu_soft_counts_get(s.w.r.soft).n_cmds, 73);
    assert_int_equal(run_chain(&s, w, n, NULL, 0, 74), OB_NPU_STATE_NEW); /* the slot is 4 KiB */
    const size_t m = ob_npu_packet_make_npu(other, 40, 1, s.text.xdna_addr, 8, args, 2);
    assert_int_equal(run_chain(&s, w, n, other, m, 2), OB_NPU_STATE_NEW); /* one opcode a chain */
    assert_int_equal(ob_npu_soft_counts_get(s.w.r.soft).n_cmds, 73);
    raw_close(&s.w);
}

static void test_personalities(void **state)
{
    static const struct { int minor; ob_npu_gen gen; bool elf, wait_cmd; } t[] = {
        {0, OB_NPU_4, false, false}, {6, OB_NPU_4, true, false}, {8, OB_NPU_5, true, false}, {16, OB_NPU_6, true, true}, {16, OB_NPU_1, false, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        sub s;
        uint32_t w[12];
        ob_npu_soft_options opt = {.driver_minor = t[i].minor, .gen = t[i].gen};
        sub_open(&s, opt);
        put_packet(&s, s.cmd, w, elf_packet(&s, w));
        assert_int_equal(sub_exec(&s, s.cmd_handle), 0);
        assert_int_equal(sub_wait(&s, 0, 1000), 0); /* a signalled fence says nothing of how it went */
        assert_int_equal(sub_state(&s, s.cmd), t[i].elf ? OB_NPU_STATE_COMPLETED : OB_NPU_STATE_NEW);
        ob_npu_wait_cmd wait = {.hwctx = s.ctx.handle, .timeout_ms = 10};
        assert_int_equal(call(&s.w, OB_NPU_IOC_WAIT_CMD, &wait), t[i].wait_cmd ? 0 : -ENOTTY);
        ob_npu_get_array arr = {0};
        assert_int_equal(call(&s.w, OB_NPU_IOC_GET_ARRAY, &arr), t[i].minor ? -EOPNOTSUPP : -ENOTTY);
        raw_close(&s.w);
    }
}

static void test_classic_path(void **state)
{
    sub s;
    uint32_t w[40], args[2] = {0}, pdi;
    union { ob_npu_cus cus; uint8_t bytes[sizeof(ob_npu_cus) + sizeof(ob_npu_cu)]; } table = {.cus = {.n = 1}};
    (void)state;
    sub_open(&s, rig_defaults(NULL));
    assert_int_equal(make_bo(&s.w, OB_NPU_BO_DEV, 4096, &pdi), 0);
    uint8_t *p = s.heap + (info_of(&s.w, pdi).xdna_addr - OB_NPU_HEAP_BASE);
    table.cus.cus[0] = (ob_npu_cu){.bo = pdi};
    ob_npu_config_hwctx c = {.handle = s.ctx.handle, .value = (uint64_t)(uintptr_t)&table, .value_size = sizeof table};
    assert_int_equal(call(&s.w, OB_NPU_IOC_CONFIG_HWCTX, &c), -EINVAL); /* no PDI of the model */
    put_packet(&s, s.cmd, w, ob_npu_packet_make_npu(w, 40, 1, s.text.xdna_addr, 8, args, 2));
    (void)sub_exec(&s, s.cmd_handle);
    assert_int_equal(sub_wait(&s, 0, 1000), 0);
    assert_int_equal(sub_state(&s, s.cmd), OB_NPU_STATE_NEW); /* no CU */
    memcpy(p, OB_NPU_SOFT_PDI_MAGIC, 8);
    s.w.r.os->api->flush(s.w.r.os, p, 64);
    assert_int_equal(call(&s.w, OB_NPU_IOC_CONFIG_HWCTX, &c), 0);
    assert_int_equal(call(&s.w, OB_NPU_IOC_CONFIG_HWCTX, &c), -EINVAL); /* once per context */
    put_packet(&s, s.cmd, w, ob_npu_packet_make_npu(w, 40, 1, s.text.xdna_addr, 8, args, 2));
    assert_int_equal(sub_wait(&s, sub_exec(&s, s.cmd_handle), 1000), 0);
    assert_int_equal(sub_state(&s, s.cmd), OB_NPU_STATE_COMPLETED);
    put_packet(&s, s.cmd, w, ob_npu_packet_make_cu(w, 40, 1, s.text.xdna_addr, 2, NULL, 0));
    assert_int_equal(sub_wait(&s, sub_exec(&s, s.cmd_handle), 1000), 0);
    assert_int_equal(sub_state(&s, s.cmd), OB_NPU_STATE_COMPLETED);
    raw_close(&s.w);
}

/* ---- memory that is not coherent --------------------------------------------------------------- */

static void test_forgotten_flush(void **state)
{
    rig r;
    ob_err err;
    (void)state;
    rig_new(&r, NULL);
    const ob_npu_cmd c = rig_copy(&r, 1, 0, RIG_BYTES);
    r.in->host[100] ^= 0xff; /* and no flush */
    assert_int_equal(ob_npu_queue_run(r.queue, &c, 1, &err), OB_OK);
    assert_false(rig_copied(&r, 0, RIG_BYTES));
    assert_int_equal(r.out->host[100], r.in->host[100] ^ 0xff);
    ob_npu_bo_flush(r.in, 100, 1);
    assert_int_equal(ob_npu_queue_run(r.queue, &c, 1, &err), OB_OK);
    assert_true(rig_copied(&r, 0, RIG_BYTES));
    rig_free(&r);
}

static void test_forgotten_invalidate(void **state)
{
    rig r;
    ob_err err;
    (void)state;
    rig_new(&r, NULL);
    const ob_npu_cmd c = rig_copy(&r, 1, 0, RIG_BYTES);
    assert_int_equal(ob_npu_queue_run(r.queue, &c, 1, &err), OB_OK);
    assert_int_equal(r.out->host[64], 0); /* what the CPU had before */
    assert_int_not_equal(r.in->host[64], 0);
    ob_npu_bo_invalidate(r.out, 64, 1);
    assert_memory_equal(r.out->host + 64, r.in->host + 64, 64); /* that line */
    assert_int_equal(r.out->host[130], 0);                      /* and no other */
    assert_true(rig_copied(&r, 0, RIG_BYTES));
    rig_free(&r);
}

static void test_forgotten_text_flush(void **state)
{
    rig r;
    ob_err err;
    (void)state;
    rig_new(&r, NULL);
    ob_npu_cmd c = rig_copy(&r, 1, 0, 64);
    memset(r.text->host + RIG_TEXT_STRIDE, 0xee, 24); /* and no flush: the NPU still has the good text */
    assert_int_equal(ob_npu_queue_run(r.queue, &c, 1, &err), OB_OK);
    assert_true(rig_copied(&r, 0, 64));
    c = rig_cmd(&r, 2, 6); /* never written to memory */
    const uint32_t w[] = {RIG_SLEEP, 1, RIG_SLEEP, 1, RIG_SLEEP, 1};
    memcpy(r.text->host + 2 * RIG_TEXT_STRIDE, w, sizeof w);
    assert_int_equal(ob_npu_queue_run(r.queue, &c, 1, &err), OB_E_DEVICE);
    rig_free(&r);
}

/* A line that both write to: the invalidate writes the CPU's part back over the NPU's. */
static void test_shared_line(void **state)
{
    rig r;
    ob_err err;
    (void)state;
    rig_new(&r, NULL);
    const ob_npu_cmd c = rig_copy(&r, 1, 0, 64);
    assert_int_equal(ob_npu_queue_run(r.queue, &c, 1, &err), OB_OK);
    r.out->host[3] = 0x55;
    assert_false(rig_copied(&r, 0, 64));
    assert_int_equal(r.out->host[5], 0); /* the NPU's result is gone */
    assert_int_equal(ob_npu_soft_counts_get(r.soft).n_stale_writes, 1);
    rig_close(&r);
    ob_npu_soft_free(r.soft);
}

static void test_sync_bo(void **state)
{
    rig r;
    ob_err err;
    (void)state;
    rig_new(&r, NULL);
    const ob_npu_cmd c = rig_copy(&r, 1, 0, RIG_BYTES);
    memset(r.in->host, 0x11, RIG_BYTES);
    ob_npu_sync_bo to = {.handle = r.in->handle, .direction = OB_NPU_TO_DEVICE, .size = RIG_BYTES};
    assert_int_equal(ob_npu_ioctl(r.os, r.dev->fd, OB_NPU_IOC_SYNC_BO, &to), 0);
    assert_int_equal(ob_npu_queue_run(r.queue, &c, 1, &err), OB_OK);
    ob_npu_sync_bo from = {.handle = r.out->handle, .direction = OB_NPU_FROM_DEVICE, .size = RIG_BYTES};
    assert_int_equal(ob_npu_ioctl(r.os, r.dev->fd, OB_NPU_IOC_SYNC_BO, &from), 0);
    assert_int_equal(r.out->host[RIG_BYTES - 1], 0x11);
    from.offset = RIG_BYTES;
    assert_int_equal(ob_npu_ioctl(r.os, r.dev->fd, OB_NPU_IOC_SYNC_BO, &from), -EINVAL);
    from = (ob_npu_sync_bo){.handle = r.out->handle, .direction = 2, .size = 1};
    assert_int_equal(ob_npu_ioctl(r.os, r.dev->fd, OB_NPU_IOC_SYNC_BO, &from), -EINVAL);
    rig_free(&r);
}

/* ---- buffers ---------------------------------------------------------------------------------- */

static void test_buffers(void **state)
{
    (void)state;
    for (int iova = 0; iova < 2; iova++) {
        rig r;
        ob_err err;
        ob_npu_bo *b[40] = {0}, *big;
        ob_npu_soft_options opt = rig_defaults(NULL);
        opt.iova = iova;
        rig_soft(&r, opt);
        assert_int_equal(rig_start(&r, (ob_npu_queue_options){0}, &err), OB_OK);
        assert_int_equal(ob_npu_shim_addr(r.in, 8), r.in->dev_addr + 8 + 0x80000000ull);
        for (int i = 0; i < 40; i++) { /* 160 MiB: the heap grows twice */
            assert_int_equal(ob_npu_bo_new(r.dev, OB_NPU_BO_DEV, 4 << 20, &b[i], &err), OB_OK);
            assert_int_equal(b[i]->host[0], 0);
            memset(b[i]->host, i, 64);
        }
        assert_int_equal(r.dev->heap.n_chunks, 3);
        for (int i = 0; i < 40; i++) assert_int_equal(b[i]->host[63], i); /* none lies in another */
        assert_int_equal(ob_npu_bo_new(r.dev, OB_NPU_BO_DEV, 500 << 20, &big, &err), OB_E_NO_MEMORY);
        assert_null(big);
        assert_non_null(strstr(err.text, "heap"));
        const ob_npu_cmd c = rig_copy(&r, 1, 4096, 4096);
        assert_int_equal(ob_npu_queue_run(r.queue, &c, 1, &err), OB_OK);
        assert_true(rig_copied(&r, 4096, 4096));
        for (int i = 0; i < 40; i++) ob_npu_bo_free(b[i]);
        assert_int_equal(ob_npu_bo_new(r.dev, OB_NPU_BO_SHARE, 0, &big, &err), OB_E_INVALID);
        rig_free(&r);
    }
}

static void test_wrapped_memory(void **state)
{
    rig r;
    ob_err err;
    ob_npu_bo *b;
    (void)state;
    uint8_t *p = ob_aligned_alloc(4096, RIG_BYTES);
    memset(p, 0x42, RIG_BYTES);
    rig_new(&r, NULL);
    assert_int_equal(ob_npu_bo_wrap(r.dev, p + 8, 4096, &b, &err), OB_E_INVALID);
    assert_int_equal(mprotect(p, RIG_BYTES, PROT_READ), 0);
    assert_int_equal(ob_npu_bo_wrap(r.dev, p, RIG_BYTES, &b, &err), OB_OK);
    const uint64_t to = r.out->dev_addr;
    const uint32_t w[] = {RIG_COPY, (uint32_t)b->dev_addr, (uint32_t)(b->dev_addr >> 32), (uint32_t)to, (uint32_t)(to >> 32), RIG_BYTES};
    const ob_npu_cmd c = rig_write(&r, 1, w, 6);
    assert_int_equal(ob_npu_queue_run(r.queue, &c, 1, &err), OB_OK);
    ob_npu_bo_invalidate(r.out, 0, RIG_BYTES);
    assert_memory_equal(r.out->host, p, RIG_BYTES);
    const uint32_t back[] = {RIG_COPY, (uint32_t)to, (uint32_t)(to >> 32), (uint32_t)b->dev_addr, (uint32_t)(b->dev_addr >> 32), 64};
    const ob_npu_cmd d = rig_write(&r, 2, back, 6);
    assert_int_equal(ob_npu_queue_run(r.queue, &d, 1, &err), OB_E_DEVICE); /* read-only */
    ob_npu_bo_free(b);
    assert_int_equal(mprotect(p, RIG_BYTES, PROT_READ | PROT_WRITE), 0);
    assert_int_equal(ob_npu_bo_wrap(r.dev, p, RIG_BYTES, &b, &err), OB_OK);
    r.out->host[0] = 0x17;
    ob_npu_bo_flush(r.out, 0, 64);
    const uint32_t again[] = {RIG_COPY, (uint32_t)to, (uint32_t)(to >> 32), (uint32_t)b->dev_addr, (uint32_t)(b->dev_addr >> 32), 64};
    const ob_npu_cmd e = rig_write(&r, 3, again, 6);
    assert_int_equal(ob_npu_queue_run(r.queue, &e, 1, &err), OB_OK);
    assert_int_equal(p[0], 0x17);
    ob_npu_bo_free(b);
    rig_free(&r);
    ob_npu_soft_options old = rig_defaults(NULL);
    old.driver_minor = 6;
    rig_soft(&r, old);
    assert_int_equal(rig_open(&r, &err), OB_OK);
    assert_int_equal(ob_npu_bo_wrap(r.dev, p, RIG_BYTES, &b, &err), OB_E_UNSUPPORTED);
    rig_free(&r);
    ob_free(p);
}

/* ---- queues ----------------------------------------------------------------------------------- */

static void test_chains_are_split(void **state)
{
    rig r;
    ob_err err;
    ob_npu_cmd c[200];
    uint64_t ticket;
    (void)state;
    rig_new(&r, NULL);
    assert_int_equal(ob_npu_queue_stats_get(r.queue).n_chains, 1); /* init, alone */
    for (int i = 0; i < 200; i++) c[i] = rig_copy(&r, i + 1, (uint32_t)i * 40, 40);
    assert_int_equal(ob_npu_queue_submit(r.queue, c, 200, &ticket, &err), OB_OK);
    assert_int_equal(ob_npu_queue_stats_get(r.queue).n_chains, 1 + 3); /* 72 + init each */
    assert_int_equal(ob_npu_queue_wait(r.queue, ticket, &err), OB_OK);
    assert_true(rig_copied(&r, 0, 8000));
    assert_int_equal(ob_npu_soft_counts_get(r.soft).n_cmds, 1 + 3 + 200);
    for (int i = 0; i < 10; i++) c[i].est_ms = 200; /* under 500 ms a chain: two of them, and init */
    assert_int_equal(ob_npu_queue_submit(r.queue, c, 10, &ticket, &err), OB_OK);
    assert_int_equal(ob_npu_queue_stats_get(r.queue).n_chains, 1 + 3 + 5);
    c[0].est_ms = 900; /* alone it must go */
    assert_int_equal(ob_npu_queue_submit(r.queue, c, 1, &ticket, &err), OB_OK);
    assert_int_equal(ob_npu_queue_wait(r.queue, ticket, &err), OB_OK);
    c[0].n_bytes = RIG_TEXTS * RIG_TEXT_STRIDE;
    c[0].off = 4;
    assert_int_equal(ob_npu_queue_submit(r.queue, c, 1, &ticket, &err), OB_E_INVALID);
    assert_false(ob_npu_queue_broken(r.queue));
    rig_free(&r);
}

/* Decode must not allocate: once a chain was this long, none as long does. */
static void test_submit_allocates_nothing(void **state)
{
    rig r;
    ob_err err;
    ob_npu_cmd c[20];
    uint64_t t;
    (void)state;
    rig_new(&r, NULL);
    for (int i = 0; i < 20; i++) c[i] = rig_copy(&r, i + 1, 0, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(ob_npu_queue_submit(r.queue, c, 20, &t, &err), OB_OK);
    const uint64_t n = ob_alloc_count();
    for (int i = 0; i < 9; i++) assert_int_equal(ob_npu_queue_submit(r.queue, c, 20, &t, &err), OB_OK);
    assert_int_equal(ob_npu_queue_wait(r.queue, t, &err), OB_OK);
    assert_int_equal(ob_alloc_count(), n);
    rig_free(&r);
}

static void test_init_after_suspend(void **state)
{
    rig r;
    ob_err err;
    (void)state;
    rig_new(&r, NULL);
    const ob_npu_cmd c = rig_copy(&r, 1, 0, 64);
    assert_int_equal(ob_npu_queue_run(r.queue, &c, 1, &err), OB_OK);
    ob_npu_soft_idle(r.soft, 4000);
    const uint64_t before = ob_npu_soft_counts_get(r.soft).n_suspends;
    assert_int_equal(ob_npu_queue_run(r.queue, &c, 1, &err), OB_OK);
    assert_int_equal(ob_npu_soft_counts_get(r.soft).n_suspends, before);
    ob_npu_soft_idle(r.soft, 6000);
    assert_int_equal(ob_npu_queue_run(r.queue, &c, 1, &err), OB_OK); /* every chain loads its PDI */
    assert_int_equal(ob_npu_soft_counts_get(r.soft).n_suspends, before + 1);
    assert_int_equal(ob_npu_queue_stats_get(r.queue).n_failures, 0);
    rig_free(&r);
}

static void test_two_queues(void **state)
{
    rig r;
    ob_err err;
    ob_npu_queue *other;
    (void)state;
    rig_new(&r, NULL);
    const ob_npu_queue_options opt = {.init = rig_cmd(&r, 0, 3)};
    assert_int_equal(ob_npu_queue_new(r.dev, &opt, &other, &err), OB_OK);
    for (int i = 0; i < 6; i++) { /* they take the array from each other */
        const ob_npu_cmd c = rig_copy(&r, 1, (uint32_t)i * 64, 64);
        assert_int_equal(ob_npu_queue_run(i % 2 ? other : r.queue, &c, 1, &err), OB_OK);
    }
    assert_true(rig_copied(&r, 0, 6 * 64));
    ob_npu_queue_free(other);
    rig_free(&r);
}

/* ---- admission -------------------------------------------------------------------------------- */

static void probe_with(ob_npu_soft_options opt, ob_npu_verdict want, const char *says)
{
    rig r;
    ob_npu_id id;
    ob_err err;
    rig_soft(&r, opt);
    ob_npu_probe(r.os, 0, &id);
    if (id.verdict != want) fail_msg("%s, not %s: %s", ob_npu_verdict_name(id.verdict), ob_npu_verdict_name(want), id.reason);
    if (says && !strstr(id.reason, says)) fail_msg("\"%s\" does not say \"%s\"", id.reason, says);
    assert_int_equal(id.reason[0] == 0, want == OB_NPU_FINE);
    assert_true(strlen(id.reason) < sizeof id.reason - 1); /* not cut */
    const ob_status s = ob_npu_dev_open(r.os, 0, &r.dev, &err);
    assert_int_equal(s == OB_OK, want == OB_NPU_FINE);
    if (s != OB_OK) assert_string_equal(err.text, id.reason);
    rig_free(&r);
}

static void test_admission(void **state)
{
    (void)state;
    probe_with(rig_defaults(NULL), OB_NPU_FINE, NULL);
    probe_with(rig_defaults("nochip"), OB_NPU_NO_CHIP, "no NPU");
    probe_with(rig_defaults("nodriver"), OB_NPU_NO_DRIVER, "modprobe amdxdna");
    probe_with(rig_defaults("open:EACCES"), OB_NPU_NO_RIGHTS, "render");
    probe_with(rig_defaults("open:ENODEV"), OB_NPU_NO_SVA, "IOMMU");
    probe_with(rig_defaults("memlock:8388608"), OB_NPU_NO_MEMLOCK, "only 8 MiB");
    probe_with(rig_defaults("geometry:4x4"), OB_NPU_GEOMETRY, "4 columns");
    probe_with(rig_defaults("ioctl:GET_INFO:1:EIO,ioctl:GET_INFO:2:EIO"), OB_NPU_FAILED, "array");
    ob_npu_soft_options o = rig_defaults(NULL);
    for (o.gen = OB_NPU_4; o.gen <= OB_NPU_6; o.gen++) probe_with(o, OB_NPU_FINE, NULL);
    o.gen = OB_NPU_1;
    probe_with(o, OB_NPU_OLD_CHIP, "XDNA1");
    o.gen = OB_NPU_AIE4;
    probe_with(o, OB_NPU_NEW_CHIP, "user mode");
    o = rig_defaults(NULL);
    o.driver_minor = 5;
    probe_with(o, OB_NPU_OLD_DRIVER, "0.6 is needed");
    o.driver_minor = 6;
    probe_with(o, OB_NPU_FINE, NULL);
    o.firmware = (ob_npu_firmware){6, 11, 0, 0};
    probe_with(o, OB_NPU_OLD_FIRMWARE, "6.11");
}

static void test_soft_pdis(void **state)
{
    rig r;
    ob_err err;
    uint8_t pdi[64] = {0xdd, 1};
    ob_npu_dev real = {.os = ob_npu_os_real()};
    (void)state;
    rig_new(&r, NULL);
    assert_int_equal(ob_npu_pdi_admit(r.dev, pdi, 64, &err), OB_E_UNSUPPORTED);
    assert_int_equal(ob_npu_pdi_admit(&real, pdi, 64, &err), OB_OK);
    memcpy(pdi, OB_NPU_SOFT_PDI_MAGIC, 8);
    assert_int_equal(ob_npu_pdi_admit(r.dev, pdi, 64, &err), OB_OK);
    assert_int_equal(ob_npu_pdi_admit(&real, pdi, 64, &err), OB_E_UNSUPPORTED);
    rig_free(&r);
}

/* ---- this machine's table ---------------------------------------------------------------------- */

static void put_file(const char *dir, const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}
static void put_dir(const char *fmt, const char *root)
{
    char cmd[600], path[500];
    snprintf(path, sizeof path, fmt, root);
    snprintf(cmd, sizeof cmd, "mkdir -p %s", path);
    assert_int_equal(system(cmd), 0);
}
static void drop_dir(const char *root)
{
    char cmd[600];
    snprintf(cmd, sizeof cmd, "rm -rf %s", root);
    assert_int_equal(system(cmd), 0);
}

static void test_sysfs(void **state)
{
    char root[] = "/tmp/npu_sysfs_XXXXXX", dir[300];
    ob_npu_os_libc os;
    ob_npu_node n;
    ob_npu_id id;
    (void)state;
    assert_non_null(mkdtemp(root));
    ob_npu_os_libc_init(&os, root);
    assert_int_equal(ob_npu_count(&os.base), 0);
    ob_npu_probe(&os.base, 0, &id);
    assert_int_equal(id.verdict, OB_NPU_NO_CHIP);
    put_dir("%s/sys/bus/pci/devices/0000:c5:00.1", root); /* the chip, and nobody's node */
    snprintf(dir, sizeof dir, "%s/sys/bus/pci/devices/0000:c5:00.1", root);
    put_file(dir, "vendor", "0x1022\n");
    put_file(dir, "device", "0x17f0\n");
    put_file(dir, "revision", "0x11\n");
    assert_int_equal(ob_npu_count(&os.base), 1);
    ob_npu_probe(&os.base, 0, &id);
    assert_int_equal(id.verdict, OB_NPU_NO_DRIVER);
    assert_int_equal(id.gen, OB_NPU_5);
    put_dir("%s/sys/class/accel/accel0/device", root); /* somebody else's accelerator */
    snprintf(dir, sizeof dir, "%s/sys/class/accel/accel0/device", root);
    put_file(dir, "vendor", "0x8086\n");
    put_dir("%s/sys/class/accel/accel3/device", root);
    snprintf(dir, sizeof dir, "%s/sys/class/accel/accel3/device", root);
    put_file(dir, "vendor", "0x1022\n");
    put_file(dir, "device", "0x17f0\n");
    put_file(dir, "revision", "0x20\n");
    put_file(dir, "vbnv", "NPU Krackan\n");
    put_file(dir, "fw_version", "1.0.20.5\n");
    assert_int_equal(os.base.api->node(&os.base, 0, &n), 0);
    assert_string_equal(n.path, "/dev/accel/accel3");
    assert_string_equal(n.name, "NPU Krackan");
    assert_string_equal(n.firmware, "1.0.20.5");
    assert_int_equal(n.revision, 0x20);
    assert_int_equal(os.base.api->node(&os.base, 1, &n), -ENOENT);
    assert_int_equal(ob_npu_count(&os.base), 1);
    ob_npu_probe(&os.base, 0, &id); /* /dev is this machine's, which has none */
    assert_int_equal(id.verdict, OB_NPU_NO_DRIVER);
    assert_int_equal(id.gen, OB_NPU_6);
    drop_dir(root);
}

/* Flushing changes no bytes, whatever their alignment. */
static void test_real_flush(void **state)
{
    ob_npu_os *os = ob_npu_os_real();
    uint8_t b[300], c[300];
    (void)state;
    for (int i = 0; i < 300; i++) b[i] = c[i] = (uint8_t)i;
    os->api->flush(os, b + 3, 290);
    os->api->invalidate(os, b + 1, 1);
    os->api->flush(os, b, 0);
    assert_memory_equal(b, c, 300);
    assert_false(os->soft);
    assert_int_equal(os->api->open(os, "/nonexistent"), -ENOENT);
}

/* ---- kernel sets ------------------------------------------------------------------------------ */

#define HASH_OF_ABC "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define MANIFEST(format, layout, devices, files)                                                                       \
    "{\"format\": " format ", \"layout\": \"" layout "\", \"tile\": [32, 64, 128], \"mma\": [8, 8, 8], "   \
    "\"rtp\": {\"address\": 64, \"lock\": 14, \"controller\": 15},"                                                               \
    "\"devices\": [" devices "], \"toolchain\": {\"mlir_aie\": \"1.4.2\", \"llvm-aie\": \"21.0\"}, \"files\": {" files "}, \"validated_on\": []}"
#define GOOD_FILES "\"gemm.elf\": \"" HASH_OF_ABC "\""

static void expect_set(const char *dir, const char *manifest, ob_status want, const char *says)
{
    ob_npu_set set;
    ob_err err = {0};
    put_file(dir, "manifest.json", manifest);
    const ob_status s = ob_npu_set_find(OB_NPU_5, &set, &err);
    if (s != want) fail_msg("status %d, not %d: %s", (int)s, (int)want, err.text);
    if (says && !strstr(err.text, says)) fail_msg("\"%s\" does not say \"%s\"", err.text, says);
}

static void test_kernel_sets(void **state)
{
    char dir[] = "/tmp/npu_set_XXXXXX", below[300];
    ob_npu_set set;
    ob_err err;
    uint8_t *data;
    size_t n;
    (void)state;
    assert_non_null(mkdtemp(dir));
    setenv("OB_NPU_KERNELS", dir, 1);
    assert_int_equal(ob_npu_set_find(OB_NPU_5, &set, &err), OB_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "build_kernels.py"));
    expect_set(dir, "{", OB_E_FORMAT, "manifest");
    expect_set(dir, "[]", OB_E_UNSUPPORTED, "format");
    expect_set(dir, MANIFEST("2", "i8c-1", "\"npu5\"", GOOD_FILES), OB_E_UNSUPPORTED, "format");
    expect_set(dir, MANIFEST("1", "i8c-9", "\"npu5\"", GOOD_FILES), OB_E_UNSUPPORTED, "i8c-9");
    expect_set(dir, MANIFEST("1", "i8c-1", "\"npu4\"", GOOD_FILES), OB_E_UNSUPPORTED, "npu5");
    expect_set(dir, MANIFEST("1", "i8c-1", "\"npu5\"", ""), OB_E_FORMAT, "files");
    expect_set(dir, MANIFEST("1", "i8c-1", "\"npu5\"", "\"../x\": \"" HASH_OF_ABC "\""), OB_E_FORMAT, "../x");
    expect_set(dir, MANIFEST("1", "i8c-1", "\"npu5\"", "\"x\": \"12\""), OB_E_FORMAT, "files");
    const struct { const char *was, *is, *says; } spoiled[] = {
        {"[32, 64, 128]", "[64, 64, 64]", "tile"}, {"[8, 8, 8]", "[4, 8, 8]", "tile"}, {"\"address\": 64", "\"address\": 65", "rtp"},
        {"\"lock\": 14", "\"lock\": 16", "rtp"},   {"\"controller\": 15", "\"other\": 15", "rtp"},
    };
    for (size_t i = 0; i < sizeof spoiled / sizeof *spoiled; i++) {
        const char *good = MANIFEST("1", "i8c-1", "\"npu5\"", GOOD_FILES), *at = strstr(good, spoiled[i].was);
        char text[1024];
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, spoiled[i].is, at + strlen(spoiled[i].was));
        expect_set(dir, text, strcmp(spoiled[i].says, "rtp") == 0 ? OB_E_FORMAT : OB_E_UNSUPPORTED, spoiled[i].says);
    }
    expect_set(dir, MANIFEST("1", "i8c-1", "\"npu4\", \"npu5\"", GOOD_FILES), OB_OK, NULL);
    assert_int_equal(ob_npu_set_find(OB_NPU_5, &set, &err), OB_OK);
    assert_string_equal(set.toolchain, "mlir_aie 1.4.2, llvm-aie 21.0");
    assert_int_equal(set.tile[2], 128);
    assert_int_equal(set.rtp_addr, 64);
    assert_int_equal(set.rtp_lock, 14);
    assert_int_equal(set.controller, 15);
    assert_false(set.validated);
    assert_int_equal(ob_npu_set_read(&set, "other.elf", &data, &n, &err), OB_E_NOT_FOUND);
    assert_int_equal(ob_npu_set_read(&set, "gemm.elf", &data, &n, &err), OB_E_NOT_FOUND);
    put_file(dir, "gemm.elf", "abc");
    assert_int_equal(ob_npu_set_read(&set, "gemm.elf", &data, &n, &err), OB_OK);
    assert_int_equal(n, 3);
    ob_free(data);
    put_file(dir, "gemm.elf", "abd");
    assert_int_equal(ob_npu_set_read(&set, "gemm.elf", &data, &n, &err), OB_E_CORRUPT);
    assert_null(data);
    put_dir("%s/npu5", dir); /* one of its own goes first */
    snprintf(below, sizeof below, "%s/npu5", dir);
    put_file(below, "manifest.json", MANIFEST("1", "i8c-1", "\"npu5\"", GOOD_FILES));
    assert_int_equal(ob_npu_set_find(OB_NPU_5, &set, &err), OB_OK);
    assert_string_equal(set.dir, below);
    unsetenv("OB_NPU_KERNELS");
    drop_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ioctl_numbers), cmocka_unit_test(test_packet_elf), cmocka_unit_test(test_packet_npu),
        cmocka_unit_test(test_packet_cu), cmocka_unit_test(test_packet_chain), cmocka_unit_test(test_packet_result),
        cmocka_unit_test(test_must_be_zero), cmocka_unit_test(test_heap_rules), cmocka_unit_test(test_heap_grows),
        cmocka_unit_test(test_address_modes), cmocka_unit_test(test_context_limits), cmocka_unit_test(test_sequence_and_point_zero),
        cmocka_unit_test(test_four_in_flight), cmocka_unit_test(test_chain_rules), cmocka_unit_test(test_personalities),
        cmocka_unit_test(test_classic_path), cmocka_unit_test(test_forgotten_flush), cmocka_unit_test(test_forgotten_invalidate),
        cmocka_unit_test(test_forgotten_text_flush), cmocka_unit_test(test_shared_line), cmocka_unit_test(test_sync_bo),
        cmocka_unit_test(test_buffers), cmocka_unit_test(test_wrapped_memory), cmocka_unit_test(test_chains_are_split),
        cmocka_unit_test(test_submit_allocates_nothing), cmocka_unit_test(test_init_after_suspend), cmocka_unit_test(test_two_queues),
        cmocka_unit_test(test_admission), cmocka_unit_test(test_soft_pdis), cmocka_unit_test(test_sysfs), cmocka_unit_test(test_real_flush),
        cmocka_unit_test(test_kernel_sets),
    };
    ob_log_set_level(OB_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
