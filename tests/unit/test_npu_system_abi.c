/* Our definitions of the NPU driver's interface against the system's header, where there is one: linux-libc-dev 7.x. */
#include "test.h"

#if __has_include(<drm/amdxdna_accel.h>)
#include <drm/amdxdna_accel.h>
#include <drm/drm.h>
#define HAVE_HEADER 1
#endif

#include "dev/npu/npu_abi.h"

#ifdef HAVE_HEADER
#define SAME_SIZE(ours, theirs) assert_int_equal(sizeof(ours), sizeof(struct theirs))
#define SAME(ours, a, theirs, b)                                                                                       \
    do {                                                                                                               \
        assert_int_equal(offsetof(ours, a), offsetof(struct theirs, b));                                               \
        assert_int_equal(sizeof(((ours *)0)->a), sizeof(((struct theirs *)0)->b));                                     \
    } while (0)

static void test_numbers(void **state)
{
    (void)state;
    assert_int_equal(OB_NPU_IOC_VERSION, DRM_IOCTL_VERSION);
    assert_int_equal(OB_NPU_IOC_GEM_CLOSE, DRM_IOCTL_GEM_CLOSE);
    assert_int_equal(OB_NPU_IOC_SYNCOBJ_CREATE, DRM_IOCTL_SYNCOBJ_CREATE);
    assert_int_equal(OB_NPU_IOC_SYNCOBJ_DESTROY, DRM_IOCTL_SYNCOBJ_DESTROY);
    assert_int_equal(OB_NPU_IOC_SYNCOBJ_TRANSFER, DRM_IOCTL_SYNCOBJ_TRANSFER);
    assert_int_equal(OB_NPU_IOC_SYNCOBJ_TIMELINE_WAIT, DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT);
    assert_int_equal(OB_NPU_IOC_CREATE_HWCTX, DRM_IOCTL_AMDXDNA_CREATE_HWCTX);
    assert_int_equal(OB_NPU_IOC_DESTROY_HWCTX, DRM_IOCTL_AMDXDNA_DESTROY_HWCTX);
    assert_int_equal(OB_NPU_IOC_CONFIG_HWCTX, DRM_IOCTL_AMDXDNA_CONFIG_HWCTX);
    assert_int_equal(OB_NPU_IOC_CREATE_BO, DRM_IOCTL_AMDXDNA_CREATE_BO);
    assert_int_equal(OB_NPU_IOC_GET_BO_INFO, DRM_IOCTL_AMDXDNA_GET_BO_INFO);
    assert_int_equal(OB_NPU_IOC_SYNC_BO, DRM_IOCTL_AMDXDNA_SYNC_BO);
    assert_int_equal(OB_NPU_IOC_EXEC_CMD, DRM_IOCTL_AMDXDNA_EXEC_CMD);
    assert_int_equal(OB_NPU_IOC_GET_INFO, DRM_IOCTL_AMDXDNA_GET_INFO);
    assert_int_equal(OB_NPU_IOC_SET_STATE, DRM_IOCTL_AMDXDNA_SET_STATE);
#ifdef DRM_IOCTL_AMDXDNA_GET_ARRAY
    assert_int_equal(OB_NPU_IOC_GET_ARRAY, DRM_IOCTL_AMDXDNA_GET_ARRAY);
#endif
#ifdef DRM_IOCTL_AMDXDNA_WAIT_CMD
    assert_int_equal(OB_NPU_IOC_WAIT_CMD, DRM_IOCTL_AMDXDNA_WAIT_CMD);
#endif
    assert_int_equal(OB_NPU_INFO_METADATA, DRM_AMDXDNA_QUERY_AIE_METADATA);
    assert_int_equal(OB_NPU_INFO_CLOCKS, DRM_AMDXDNA_QUERY_CLOCK_METADATA);
    assert_int_equal(OB_NPU_INFO_FIRMWARE, DRM_AMDXDNA_QUERY_FIRMWARE_VERSION);
    assert_int_equal(OB_NPU_INFO_POWER_MODE, DRM_AMDXDNA_GET_POWER_MODE);
    assert_int_equal(OB_NPU_INFO_RESOURCES, DRM_AMDXDNA_QUERY_RESOURCE_INFO);
    assert_int_equal(OB_NPU_BO_SHARE, AMDXDNA_BO_SHARE);
    assert_int_equal(OB_NPU_BO_DEV_HEAP, AMDXDNA_BO_DEV_HEAP);
    assert_int_equal(OB_NPU_BO_DEV, AMDXDNA_BO_DEV);
    assert_int_equal(OB_NPU_BO_CMD, AMDXDNA_BO_CMD);
    assert_int_equal(OB_NPU_WAIT_ALL, DRM_SYNCOBJ_WAIT_FLAGS_WAIT_ALL);
    assert_int_equal(OB_NPU_WAIT_FOR_SUBMIT, DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT);
}

static void test_fields(void **state)
{
    (void)state;
    SAME_SIZE(ob_npu_drm_version, drm_version);
    SAME(ob_npu_drm_version, minor, drm_version, version_minor);
    SAME(ob_npu_drm_version, name_len, drm_version, name_len);
    SAME(ob_npu_drm_version, name, drm_version, name);
    SAME_SIZE(ob_npu_timeline_wait, drm_syncobj_timeline_wait);
    SAME(ob_npu_timeline_wait, points, drm_syncobj_timeline_wait, points);
    SAME(ob_npu_timeline_wait, deadline_ns, drm_syncobj_timeline_wait, timeout_nsec);
    SAME(ob_npu_timeline_wait, n_handles, drm_syncobj_timeline_wait, count_handles);
    SAME(ob_npu_timeline_wait, flags, drm_syncobj_timeline_wait, flags);
    SAME_SIZE(ob_npu_create_bo, amdxdna_drm_create_bo);
    SAME(ob_npu_create_bo, vaddr, amdxdna_drm_create_bo, vaddr);
    SAME(ob_npu_create_bo, size, amdxdna_drm_create_bo, size);
    SAME(ob_npu_create_bo, type, amdxdna_drm_create_bo, type);
    SAME(ob_npu_create_bo, handle, amdxdna_drm_create_bo, handle);
    SAME_SIZE(ob_npu_get_bo_info, amdxdna_drm_get_bo_info);
    SAME(ob_npu_get_bo_info, handle, amdxdna_drm_get_bo_info, handle);
    SAME(ob_npu_get_bo_info, map_offset, amdxdna_drm_get_bo_info, map_offset);
    SAME(ob_npu_get_bo_info, vaddr, amdxdna_drm_get_bo_info, vaddr);
    SAME(ob_npu_get_bo_info, xdna_addr, amdxdna_drm_get_bo_info, xdna_addr);
    SAME_SIZE(ob_npu_sync_bo, amdxdna_drm_sync_bo);
    SAME(ob_npu_sync_bo, direction, amdxdna_drm_sync_bo, direction);
    SAME(ob_npu_sync_bo, size, amdxdna_drm_sync_bo, size);
    SAME_SIZE(ob_npu_qos, amdxdna_qos_info);
    SAME(ob_npu_qos, priority, amdxdna_qos_info, priority);
    SAME_SIZE(ob_npu_create_hwctx, amdxdna_drm_create_hwctx);
    SAME(ob_npu_create_hwctx, qos, amdxdna_drm_create_hwctx, qos_p);
    SAME(ob_npu_create_hwctx, max_opc, amdxdna_drm_create_hwctx, max_opc);
    SAME(ob_npu_create_hwctx, n_tiles, amdxdna_drm_create_hwctx, num_tiles);
    SAME(ob_npu_create_hwctx, handle, amdxdna_drm_create_hwctx, handle);
    SAME(ob_npu_create_hwctx, syncobj, amdxdna_drm_create_hwctx, syncobj_handle);
    SAME_SIZE(ob_npu_config_hwctx, amdxdna_drm_config_hwctx);
    SAME(ob_npu_config_hwctx, value, amdxdna_drm_config_hwctx, param_val);
    SAME(ob_npu_config_hwctx, value_size, amdxdna_drm_config_hwctx, param_val_size);
    SAME_SIZE(ob_npu_exec_cmd, amdxdna_drm_exec_cmd);
    SAME(ob_npu_exec_cmd, hwctx, amdxdna_drm_exec_cmd, hwctx);
    SAME(ob_npu_exec_cmd, cmds, amdxdna_drm_exec_cmd, cmd_handles);
    SAME(ob_npu_exec_cmd, args, amdxdna_drm_exec_cmd, args);
    SAME(ob_npu_exec_cmd, n_cmds, amdxdna_drm_exec_cmd, cmd_count);
    SAME(ob_npu_exec_cmd, n_args, amdxdna_drm_exec_cmd, arg_count);
    SAME(ob_npu_exec_cmd, seq, amdxdna_drm_exec_cmd, seq);
    SAME_SIZE(ob_npu_get_info, amdxdna_drm_get_info);
    SAME(ob_npu_get_info, size, amdxdna_drm_get_info, buffer_size);
    SAME_SIZE(ob_npu_metadata, amdxdna_drm_query_aie_metadata);
    SAME(ob_npu_metadata, n_cols, amdxdna_drm_query_aie_metadata, cols);
    SAME(ob_npu_metadata, core.n_rows, amdxdna_drm_query_aie_metadata, core.row_count);
    SAME(ob_npu_metadata, mem, amdxdna_drm_query_aie_metadata, mem);
    SAME(ob_npu_metadata, shim, amdxdna_drm_query_aie_metadata, shim);
    SAME_SIZE(ob_npu_clocks, amdxdna_drm_query_clock_metadata);
    SAME(ob_npu_clocks, array.mhz, amdxdna_drm_query_clock_metadata, h_clock.freq_mhz);
    SAME_SIZE(ob_npu_firmware, amdxdna_drm_query_firmware_version);
    SAME(ob_npu_firmware, minor, amdxdna_drm_query_firmware_version, minor);
    SAME_SIZE(ob_npu_power, amdxdna_drm_get_power_mode);
    SAME_SIZE(ob_npu_resources, amdxdna_drm_get_resource_info);
    SAME_SIZE(ob_npu_cu, amdxdna_cu_config);
}
#else
static void test_fields(void **state)
{
    (void)state;
    print_message("skipped: no <drm/amdxdna_accel.h> (linux-libc-dev 7.x)\n");
    skip();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef HAVE_HEADER
        cmocka_unit_test(test_numbers),
#endif
        cmocka_unit_test(test_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
