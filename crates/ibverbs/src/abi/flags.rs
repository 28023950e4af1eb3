//! Enumerations whose values are bits.

use super::c_enums;

c_enums! { FLAGS;
    ibv_device_cap_flags: u32 {
        IBV_DEVICE_RESIZE_MAX_WR = 1,
        IBV_DEVICE_BAD_PKEY_CNTR = 1 << 1,
        IBV_DEVICE_BAD_QKEY_CNTR = 1 << 2,
        IBV_DEVICE_RAW_MULTI = 1 << 3,
        IBV_DEVICE_AUTO_PATH_MIG = 1 << 4,
        IBV_DEVICE_CHANGE_PHY_PORT = 1 << 5,
        IBV_DEVICE_UD_AV_PORT_ENFORCE = 1 << 6,
        IBV_DEVICE_CURR_QP_STATE_MOD = 1 << 7,
        IBV_DEVICE_SHUTDOWN_PORT = 1 << 8,
        IBV_DEVICE_INIT_TYPE = 1 << 9,
        IBV_DEVICE_PORT_ACTIVE_EVENT = 1 << 10,
        IBV_DEVICE_SYS_IMAGE_GUID = 1 << 11,
        IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12,
        IBV_DEVICE_SRQ_RESIZE = 1 << 13,
        IBV_DEVICE_N_NOTIFY_CQ = 1 << 14,
        IBV_DEVICE_MEM_WINDOW = 1 << 17,
        IBV_DEVICE_UD_IP_CSUM = 1 << 18,
        IBV_DEVICE_XRC = 1 << 20,
        IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21,
        IBV_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23,
        IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
        IBV_DEVICE_RC_IP_CSUM = 1 << 25,
        IBV_DEVICE_RAW_IP_CSUM = 1 << 26,
        IBV_DEVICE_MANAGED_FLOW_STEERING = 1 << 29,
    }
    ibv_dm_mask: u32 {
        IBV_DM_MASK_HANDLE = 1,
    }
    ibv_odp_transport_cap_bits: u32 {
        IBV_ODP_SUPPORT_SEND = 1,
        IBV_ODP_SUPPORT_RECV = 1 << 1,
        IBV_ODP_SUPPORT_WRITE = 1 << 2,
        IBV_ODP_SUPPORT_READ = 1 << 3,
        IBV_ODP_SUPPORT_ATOMIC = 1 << 4,
        IBV_ODP_SUPPORT_SRQ_RECV = 1 << 5,
        IBV_ODP_SUPPORT_FLUSH = 1 << 6,
        IBV_ODP_SUPPORT_ATOMIC_WRITE = 1 << 7,
    }
    ibv_odp_general_caps: u64 {
        IBV_ODP_SUPPORT = 1,
        IBV_ODP_SUPPORT_IMPLICIT = 1 << 1,
    }
    ibv_rx_hash_function_flags: u32 {
        IBV_RX_HASH_FUNC_TOEPLITZ = 1,
    }
    ibv_rx_hash_fields: u64 {
        IBV_RX_HASH_SRC_IPV4 = 1,
        IBV_RX_HASH_DST_IPV4 = 1 << 1,
        IBV_RX_HASH_SRC_IPV6 = 1 << 2,
        IBV_RX_HASH_DST_IPV6 = 1 << 3,
        IBV_RX_HASH_SRC_PORT_TCP = 1 << 4,
        IBV_RX_HASH_DST_PORT_TCP = 1 << 5,
        IBV_RX_HASH_SRC_PORT_UDP = 1 << 6,
        IBV_RX_HASH_DST_PORT_UDP = 1 << 7,
        IBV_RX_HASH_IPSEC_SPI = 1 << 8,
        IBV_RX_HASH_INNER = 1 << 31,
    }
    ibv_raw_packet_caps: u32 {
        IBV_RAW_PACKET_CAP_CVLAN_STRIPPING = 1,
        IBV_RAW_PACKET_CAP_SCATTER_FCS = 1 << 1,
        IBV_RAW_PACKET_CAP_IP_CSUM = 1 << 2,
        IBV_RAW_PACKET_CAP_DELAY_DROP = 1 << 3,
    }
    ibv_tm_cap_flags: u32 {
        IBV_TM_CAP_RC = 1,
    }
    ibv_pci_atomic_op_size: u16 {
        IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP = 1,
        IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP = 1 << 1,
        IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP = 1 << 2,
    }
    ibv_port_cap_flags: u32 {
        IBV_PORT_SM = 1 << 1,
        IBV_PORT_NOTICE_SUP = 1 << 2,
        IBV_PORT_TRAP_SUP = 1 << 3,
        IBV_PORT_OPT_IPD_SUP = 1 << 4,
        IBV_PORT_AUTO_MIGR_SUP = 1 << 5,
        IBV_PORT_SL_MAP_SUP = 1 << 6,
        IBV_PORT_MKEY_NVRAM = 1 << 7,
        IBV_PORT_PKEY_NVRAM = 1 << 8,
        IBV_PORT_LED_INFO_SUP = 1 << 9,
        IBV_PORT_SYS_IMAGE_GUID_SUP = 1 << 11,
        IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12,
        IBV_PORT_EXTENDED_SPEEDS_SUP = 1 << 14,
        IBV_PORT_CAP_MASK2_SUP = 1 << 15,
        IBV_PORT_CM_SUP = 1 << 16,
        IBV_PORT_SNMP_TUNNEL_SUP = 1 << 17,
        IBV_PORT_REINIT_SUP = 1 << 18,
        IBV_PORT_DEVICE_MGMT_SUP = 1 << 19,
        IBV_PORT_VENDOR_CLASS_SUP = 1 << 20,
        IBV_PORT_DR_NOTICE_SUP = 1 << 21,
        IBV_PORT_CAP_MASK_NOTICE_SUP = 1 << 22,
        IBV_PORT_BOOT_MGMT_SUP = 1 << 23,
        IBV_PORT_LINK_LATENCY_SUP = 1 << 24,
        IBV_PORT_CLIENT_REG_SUP = 1 << 25,
        IBV_PORT_IP_BASED_GIDS = 1 << 26,
    }
    ibv_port_cap_flags2: u16 {
        IBV_PORT_SET_NODE_DESC_SUP = 1,
        IBV_PORT_INFO_EXT_SUP = 1 << 1,
        IBV_PORT_VIRT_SUP = 1 << 2,
        IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 1 << 3,
        IBV_PORT_LINK_WIDTH_2X_SUP = 1 << 4,
        IBV_PORT_LINK_SPEED_HDR_SUP = 1 << 5,
        IBV_PORT_LINK_SPEED_NDR_SUP = 1 << 10,
        IBV_PORT_LINK_SPEED_XDR_SUP = 1 << 12,
    }
    ibv_create_cq_wc_flags: u64 {
        IBV_WC_EX_WITH_BYTE_LEN = 1,
        IBV_WC_EX_WITH_IMM = 1 << 1,
        IBV_WC_EX_WITH_QP_NUM = 1 << 2,
        IBV_WC_EX_WITH_SRC_QP = 1 << 3,
        IBV_WC_EX_WITH_SLID = 1 << 4,
        IBV_WC_EX_WITH_SL = 1 << 5,
        IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7,
        IBV_WC_EX_WITH_CVLAN = 1 << 8,
        IBV_WC_EX_WITH_FLOW_TAG = 1 << 9,
        IBV_WC_EX_WITH_TM_INFO = 1 << 10,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11,
    }
    ibv_wc_flags: u32 {
        IBV_WC_GRH = 1,
        IBV_WC_WITH_IMM = 1 << 1,
        IBV_WC_IP_CSUM_OK = 1 << 2,
        IBV_WC_WITH_INV = 1 << 3,
        IBV_WC_TM_SYNC_REQ = 1 << 4,
        IBV_WC_TM_MATCH = 1 << 5,
        IBV_WC_TM_DATA_VALID = 1 << 6,
    }
    ibv_access_flags: u32 {
        IBV_ACCESS_LOCAL_WRITE = 1,
        IBV_ACCESS_REMOTE_WRITE = 1 << 1,
        IBV_ACCESS_REMOTE_READ = 1 << 2,
        IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
        IBV_ACCESS_MW_BIND = 1 << 4,
        IBV_ACCESS_ZERO_BASED = 1 << 5,
        IBV_ACCESS_ON_DEMAND = 1 << 6,
        IBV_ACCESS_HUGETLB = 1 << 7,
        IBV_ACCESS_FLUSH_GLOBAL = 1 << 8,
        IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9,
        IBV_ACCESS_RELAXED_ORDERING = IBV_ACCESS_OPTIONAL_FIRST,
    }
    ibv_xrcd_init_attr_mask: u32 {
        IBV_XRCD_INIT_ATTR_FD = 1,
        IBV_XRCD_INIT_ATTR_OFLAGS = 1 << 1,
        IBV_XRCD_INIT_ATTR_RESERVED = 1 << 2,
    }
    ibv_rereg_mr_flags: u32 {
        IBV_REREG_MR_CHANGE_TRANSLATION = 1,
        IBV_REREG_MR_CHANGE_PD = 1 << 1,
        IBV_REREG_MR_CHANGE_ACCESS = 1 << 2,
        IBV_REREG_MR_FLAGS_SUPPORTED = 7,
    }
    ibv_srq_attr_mask: u32 {
        IBV_SRQ_MAX_WR = 1,
        IBV_SRQ_LIMIT = 1 << 1,
    }
    ibv_srq_init_attr_mask: u32 {
        IBV_SRQ_INIT_ATTR_TYPE = 1,
        IBV_SRQ_INIT_ATTR_PD = 1 << 1,
        IBV_SRQ_INIT_ATTR_XRCD = 1 << 2,
        IBV_SRQ_INIT_ATTR_CQ = 1 << 3,
        IBV_SRQ_INIT_ATTR_TM = 1 << 4,
        IBV_SRQ_INIT_ATTR_RESERVED = 1 << 5,
    }
    ibv_wq_init_attr_mask: u32 {
        IBV_WQ_INIT_ATTR_FLAGS = 1,
        IBV_WQ_INIT_ATTR_RESERVED = 1 << 1,
    }
    ibv_wq_flags: u32 {
        IBV_WQ_FLAGS_CVLAN_STRIPPING = 1,
        IBV_WQ_FLAGS_SCATTER_FCS = 1 << 1,
        IBV_WQ_FLAGS_DELAY_DROP = 1 << 2,
        IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = 1 << 3,
        IBV_WQ_FLAGS_RESERVED = 1 << 4,
    }
    ibv_wq_attr_mask: u32 {
        IBV_WQ_ATTR_STATE = 1,
        IBV_WQ_ATTR_CURR_STATE = 1 << 1,
        IBV_WQ_ATTR_FLAGS = 1 << 2,
        IBV_WQ_ATTR_RESERVED = 1 << 3,
    }
    ibv_ind_table_init_attr_mask: u32 {
        IBV_CREATE_IND_TABLE_RESERVED = 1,
    }
    ibv_qp_init_attr_mask: u32 {
        IBV_QP_INIT_ATTR_PD = 1,
        IBV_QP_INIT_ATTR_XRCD = 1 << 1,
        IBV_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2,
        IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 1 << 3,
        IBV_QP_INIT_ATTR_IND_TABLE = 1 << 4,
        IBV_QP_INIT_ATTR_RX_HASH = 1 << 5,
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6,
    }
    ibv_qp_create_flags: u32 {
        IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 1 << 1,
        IBV_QP_CREATE_SCATTER_FCS = 1 << 8,
        IBV_QP_CREATE_CVLAN_STRIPPING = 1 << 9,
        IBV_QP_CREATE_SOURCE_QPN = 1 << 10,
        IBV_QP_CREATE_PCI_WRITE_END_PADDING = 1 << 11,
    }
    ibv_qp_create_send_ops_flags: u64 {
        IBV_QP_EX_WITH_RDMA_WRITE = 1,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1,
        IBV_QP_EX_WITH_SEND = 1 << 2,
        IBV_QP_EX_WITH_SEND_WITH_IMM = 1 << 3,
        IBV_QP_EX_WITH_RDMA_READ = 1 << 4,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6,
        IBV_QP_EX_WITH_LOCAL_INV = 1 << 7,
        IBV_QP_EX_WITH_BIND_MW = 1 << 8,
        IBV_QP_EX_WITH_SEND_WITH_INV = 1 << 9,
        IBV_QP_EX_WITH_TSO = 1 << 10,
        IBV_QP_EX_WITH_FLUSH = 1 << 11,
        IBV_QP_EX_WITH_ATOMIC_WRITE = 1 << 12,
    }
    ibv_qp_open_attr_mask: u32 {
        IBV_QP_OPEN_ATTR_NUM = 1,
        IBV_QP_OPEN_ATTR_XRCD = 1 << 1,
        IBV_QP_OPEN_ATTR_CONTEXT = 1 << 2,
        IBV_QP_OPEN_ATTR_TYPE = 1 << 3,
        IBV_QP_OPEN_ATTR_RESERVED = 1 << 4,
    }
    ibv_qp_attr_mask: u32 {
        IBV_QP_STATE = 1,
        IBV_QP_CUR_STATE = 1 << 1,
        IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
        IBV_QP_ACCESS_FLAGS = 1 << 3,
        IBV_QP_PKEY_INDEX = 1 << 4,
        IBV_QP_PORT = 1 << 5,
        IBV_QP_QKEY = 1 << 6,
        IBV_QP_AV = 1 << 7,
        IBV_QP_PATH_MTU = 1 << 8,
        IBV_QP_TIMEOUT = 1 << 9,
        IBV_QP_RETRY_CNT = 1 << 10,
        IBV_QP_RNR_RETRY = 1 << 11,
        IBV_QP_RQ_PSN = 1 << 12,
        IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
        IBV_QP_ALT_PATH = 1 << 14,
        IBV_QP_MIN_RNR_TIMER = 1 << 15,
        IBV_QP_SQ_PSN = 1 << 16,
        IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
        IBV_QP_PATH_MIG_STATE = 1 << 18,
        IBV_QP_CAP = 1 << 19,
        IBV_QP_DEST_QPN = 1 << 20,
        IBV_QP_RATE_LIMIT = 1 << 25,
    }
    ibv_query_qp_data_in_order_flags: u32 {
        IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS = 1,
        IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY = 1 << 1,
    }
    ibv_query_qp_data_in_order_caps: u32 {
        IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG = 1,
        IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES = 1 << 1,
    }
    ibv_mr_init_attr_mask: u64 {
        IBV_REG_MR_MASK_IOVA = 1,
        IBV_REG_MR_MASK_ADDR = 1 << 1,
        IBV_REG_MR_MASK_FD = 1 << 2,
        IBV_REG_MR_MASK_FD_OFFSET = 1 << 3,
        IBV_REG_MR_MASK_DMAH = 1 << 4,
        IBV_REG_MR_MASK_BUF = 1 << 5,
    }
    ibv_dmah_init_attr_mask: u32 {
        IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1,
        IBV_DMAH_INIT_ATTR_MASK_PH = 1 << 1,
        IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 1 << 2,
    }
    ibv_qp_attach_comp_cntr_op: u32 {
        IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1,
        IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 1 << 1,
        IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 1 << 2,
        IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 1 << 3,
        IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 1 << 4,
        IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 1 << 5,
    }
    ibv_placement_type: u32 {
        IBV_FLUSH_GLOBAL = 1,
        IBV_FLUSH_PERSISTENT = 1 << 1,
    }
    ibv_send_flags: u32 {
        IBV_SEND_FENCE = 1,
        IBV_SEND_SIGNALED = 1 << 1,
        IBV_SEND_SOLICITED = 1 << 2,
        IBV_SEND_INLINE = 1 << 3,
        IBV_SEND_IP_CSUM = 1 << 4,
    }
    ibv_ops_flags: u32 {
        IBV_OPS_SIGNALED = 1,
        IBV_OPS_TM_SYNC = 1 << 1,
    }
    ibv_cq_attr_mask: u32 {
        IBV_CQ_ATTR_MODERATE = 1,
        IBV_CQ_ATTR_RESERVED = 1 << 1,
    }
    ibv_flow_flags: u32 {
        IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 1 << 1,
        IBV_FLOW_ATTR_FLAGS_EGRESS = 1 << 2,
    }
    ibv_flow_action_esp_mask: u32 {
        IBV_FLOW_ACTION_ESP_MASK_ESN = 1,
    }
    ibv_cq_init_attr_mask: u32 {
        IBV_CQ_INIT_ATTR_MASK_FLAGS = 1,
        IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1,
    }
    ibv_create_cq_attr_flags: u32 {
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1,
        IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1,
    }
    ibv_parent_domain_init_attr_mask: u32 {
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1,
        IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1,
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = 1 << 2,
    }
    ibv_read_counters_flags: u32 {
        IBV_READ_COUNTERS_ATTR_PREFER_CACHED = 1,
    }
    ibv_values_mask: u32 {
        IBV_VALUES_MASK_RAW_CLOCK = 1,
        IBV_VALUES_MASK_RESERVED = 1 << 1,
    }
    /// Flags of `device_cap_flags_ex` beyond the 32 bits of `ibv_device_cap_flags`. Macros in C.
    ibv_device_cap_flags_ex: u64 {
        IBV_DEVICE_RAW_SCATTER_FCS = 1 << 34,
        IBV_DEVICE_PCI_WRITE_END_PADDING = 1 << 36,
        IBV_DEVICE_CC_DMA_BOUNCE = 1 << 41,
    }
    /// Unions of `ibv_create_cq_wc_flags`. Unnamed in C.
    ibv_wc_flag_sets: u64 {
        IBV_WC_STANDARD_FLAGS = (1 << 7) - 1,
        IBV_CREATE_CQ_SUP_WC_FLAGS = (1 << 12) - 1,
    }
    /// Unnamed in C.
    ibv_wc_shift: u32 {
        IBV_WC_IP_CSUM_OK_SHIFT = 2,
    }
    /// Access flags that a device may ignore if it does not know them.
    ibv_access_optional: u32 {
        IBV_ACCESS_OPTIONAL_FIRST = 1 << 20,
        IBV_ACCESS_OPTIONAL_RANGE = 0x3ff0_0000,
    }
    ibv_advise_mr_flag: u32 {
        IBV_ADVISE_MR_FLAG_FLUSH = 1,
    }
    /// Flags of `ibv_port_attr::flags`.
    ibv_query_port_flags: u8 {
        IBV_QPF_GRH_REQUIRED = 1,
    }
    ibv_flow_action_esp_flags: u32 {
        IBV_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO = 0,
        IBV_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD = 1,
        IBV_FLOW_ACTION_ESP_FLAGS_TUNNEL = 0,
        IBV_FLOW_ACTION_ESP_FLAGS_TRANSPORT = 1 << 1,
        IBV_FLOW_ACTION_ESP_FLAGS_DECRYPT = 0,
        IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT = 1 << 2,
        IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW = 1 << 3,
    }
}
