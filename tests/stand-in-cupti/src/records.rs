//! The records as structs of the newest release. Those of older releases are prefixes of them.

/// Declares records: C structs, and their bytes. `sizes` are `(first version, bytes)` of `sizeof` in the headers of
/// 12.4.127, 12.5.82, 12.6.80, 12.8.90, 12.9.79, 13.0.85, 13.1.115, 13.2.86, 13.3.75, 13.4.92 and 13.5.25.
macro_rules! records {
    ($( $name:ident: kind $kind:literal, sizes [$($size:tt),+] { $($field:ident: $type:ty,)+ } )+) => {$(
        #[doc = concat!("`CUpti_Activity", stringify!($name), "`.")]
        #[derive(Clone, Copy, Debug, Default)]
        #[repr(C)]
        pub struct $name { $(pub $field: $type,)+ }

        impl $name {
            /// The kind, unless the record has another one.
            pub const KIND: u32 = $kind;
            /// `(first version, bytes)`.
            pub const SIZES: &[(u32, usize)] = &[$($size),+];
            /// `(field, offset, bytes)`.
            pub const FIELDS: &[(&str, usize, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$type>())),+];

            /// The bytes that CUPTI of this version writes.
            pub fn bytes(&self, version: u32) -> Vec<u8> {
                let mut bytes = vec![0; size_of::<Self>()];
                $({
                    let at = std::mem::offset_of!($name, $field);
                    bytes[at..at + size_of::<$type>()].copy_from_slice(&self.$field.to_ne_bytes());
                })+
                if self.kind == 0 {
                    bytes[..4].copy_from_slice(&Self::KIND.to_ne_bytes());
                }
                bytes.truncate(size(Self::SIZES, version));
                bytes
            }
        }
    )+

        /// `(name, kind, sizes, fields, size of the struct)` of every record.
        pub const RECORDS: &[(&str, u32, &[(u32, usize)], &[(&str, usize, usize)], usize)] =
            &[$((stringify!($name), $kind, $name::SIZES, $name::FIELDS, size_of::<$name>())),+];
    };
}

/// The size in a version.
pub fn size(sizes: &[(u32, usize)], version: u32) -> usize {
    sizes.iter().rev().find(|(since, _)| *since <= version).or(sizes.first()).map_or(0, |(_, bytes)| *bytes)
}

/// The size of a kind in a version; `None` if this stand-in does not know the kind.
pub fn size_of_kind(kind: u32, version: u32) -> Option<usize> {
    let kind = match kind {
        3 => 10,
        4 => 5,
        // A kind that rankscope does not read: COMPUTE_ENGINE_CTX_SWITCH, with an arbitrary size.
        57 => return Some(72),
        other => other,
    };
    RECORDS.iter().find(|record| record.1 == kind).map(|record| size(record.2, version))
}

records! {
    Kernel13: kind 10, sizes [(22, 208), (130_000, 216), (130_100, 224), (130_300, 232), (130_400, 248)] {
        kind: u32, cache_config: u8, shared_memory_config: u8, registers_per_thread: u16,
        partitioned_requested: u32, partitioned_executed: u32, start: u64, end: u64, completed: u64,
        device_id: u32, context_id: u32, stream_id: u32, grid_x: i32, grid_y: i32, grid_z: i32,
        block_x: i32, block_y: i32, block_z: i32, static_shared_memory: i32, dynamic_shared_memory: i32,
        local_memory_per_thread: u32, local_memory_total: u32, correlation_id: u32, grid_id: i64, name: u64,
        reserved0: u64, queued: u64, submitted: u64, launch_type: u8, carveout_requested: u8, carveout: u8, padding: u8,
        shared_memory_executed: u32, graph_node_id: u64, shmem_limit_config: u32, graph_id: u32, policy_window: u64,
        channel_id: u32, channel_type: u32, cluster_x: u32, cluster_y: u32, cluster_z: u32, cluster_policy: u32,
        local_memory_total_v2: u64, max_potential_cluster: u32, max_active_clusters: u32, is_device_launched: u8,
        padding3a: u8, padding3b: u16, padding3c: u32, priority: i32, padding4: u32, execution_model: u32,
        padding5: u32, source_graph_id: u32, padding6: u32, source_graph_node_id: u64,
    }
    Memcpy7: kind 1, sizes [(22, 88), (26, 96), (130_400, 112)] {
        kind: u32, copy_kind: u8, src_kind: u8, dst_kind: u8, flags: u8, bytes: u64, start: u64, end: u64,
        device_id: u32, context_id: u32, stream_id: u32, correlation_id: u32, runtime_correlation_id: u32, pad: u32,
        reserved0: u64, graph_node_id: u64, graph_id: u32, channel_id: u32, channel_type: u32, is_device_launched: u8,
        pad2a: u8, pad2b: u16, copy_count: u64, source_graph_id: u32, pad3: u32, source_graph_node_id: u64,
    }
    MemcpyPtoP4: kind 22, sizes [(22, 96)] {
        kind: u32, copy_kind: u8, src_kind: u8, dst_kind: u8, flags: u8, bytes: u64, start: u64, end: u64,
        device_id: u32, context_id: u32, stream_id: u32, src_device_id: u32, src_context_id: u32, dst_device_id: u32,
        dst_context_id: u32, correlation_id: u32, reserved0: u64, graph_node_id: u64, graph_id: u32, channel_id: u32,
        channel_type: u32, tail: u32,
    }
    Memset5: kind 2, sizes [(22, 88), (130_400, 104)] {
        kind: u32, value: u32, bytes: u64, start: u64, end: u64, device_id: u32, context_id: u32, stream_id: u32,
        correlation_id: u32, flags: u16, memory_kind: u16, pad: u32, reserved0: u64, graph_node_id: u64, graph_id: u32,
        channel_id: u32, channel_type: u32, is_device_launched: u8, pad2a: u8, pad2b: u16, source_graph_id: u32,
        pad3: u32, source_graph_node_id: u64,
    }
    API: kind 5, sizes [(22, 40)] {
        kind: u32, callback_id: u32, start: u64, end: u64, process_id: u32, thread_id: u32, correlation_id: u32,
        return_value: u32,
    }
    ExternalCorrelation: kind 39, sizes [(22, 24)] {
        kind: u32, external_kind: u32, external_id: u64, correlation_id: u32, reserved: u32,
    }
    Overhead3: kind 17, sizes [(22, 56)] {
        kind: u32, overhead_kind: u32, object_kind: u32, process_id: u32, thread_id: u32, object_id2: u32, start: u64,
        end: u64, correlation_id: u32, reserved0: u32, overhead_data: u64,
    }
    Synchronization2: kind 38, sizes [(22, 40), (26, 56)] {
        kind: u32, sync_kind: u32, start: u64, end: u64, correlation_id: u32, context_id: u32, stream_id: u32,
        event_id: u32, event_sync_id: u64, return_value: u32, pad: u32,
    }
    Marker2: kind 12, sizes [(22, 56)] {
        kind: u32, flags: u32, timestamp: u64, id: u32, object_kind: u32, process_id: u32, thread_id: u32,
        object_id2: u32, pad: u32, name: u64, domain: u64,
    }
    MarkerData2: kind 13, sizes [(22, 32), (130_000, 40)] {
        kind: u32, flags: u32, id: u32, payload_kind: u32, payload: u64, color: u32, category: u32, domain_id: u32,
        padding: u32,
    }
    Memory4: kind 49, sizes [(22, 120), (24, 128)] {
        kind: u32, operation: u32, memory_kind: u32, correlation_id: u32, address: u64, bytes: u64, timestamp: u64,
        pc: u64, process_id: u32, device_id: u32, context_id: u32, stream_id: u32, name: u64, is_async: u32, pad1: u32,
        pool_type: u32, pad2: u32, pool_address: u64, release_threshold: u64, pool_size: u64, utilized_size: u64,
        source: u64,
    }
    Device6: kind 8, sizes [(22, 184), (130_200, 192)] {
        kind: u32, flags: u32, memory_bandwidth_kbs: u64, memory_bytes: u64, constant_memory: u32, l2_cache: u32,
        threads_per_warp: u32, core_clock_khz: u32, memcpy_engines: u32, multiprocessors: u32, max_ipc: u32,
        warps_per_multiprocessor: u32, blocks_per_multiprocessor: u32, shared_memory_per_multiprocessor: u32,
        registers_per_multiprocessor: u32, registers_per_block: u32, shared_memory_per_block: u32,
        threads_per_block: u32, block_x: u32, block_y: u32, block_z: u32, grid_x: u32, grid_y: u32, grid_z: u32,
        capability_major: u32, capability_minor: u32, id: u32, ecc: u32, uuid: u64, uuid2: u64, name: u64, is_cuda_visible: u8,
        is_mig_enabled: u8, reserved_a: u16, reserved_b: u32, gpu_instance: u32, compute_instance: u32, mig_uuid: u64, mig_uuid2: u64,
        is_numa_node: u32, numa_id: u32, tpcs: u32, reserved0: u32,
    }
    Context4: kind 9, sizes [(22, 24), (23, 32), (130_100, 40)] {
        kind: u32, context_id: u32, device_id: u32, api_kind: u16, null_stream_id: u16, parent_context_id: u32,
        is_green: u8, padding: u8, multiprocessors: u16, cig_mode: u32, padding2: u32, process_id: u64,
    }
    Stream: kind 37, sizes [(22, 24)] {
        kind: u32, context_id: u32, stream_id: u32, priority: u32, flag: u32, correlation_id: u32,
    }
    Name: kind 11, sizes [(22, 32)] {
        kind: u32, object_kind: u32, object_id: u32, object_id1: u32, object_id2: u32, pad: u32, name: u64,
    }
}
