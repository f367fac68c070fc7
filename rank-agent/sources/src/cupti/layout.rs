//! Offsets of the fields of CUPTI's records, by version.
//!
//! Offsets and sizes are those of the headers of CUDA 12.4 to 13.5 (`cupti_activity.h`, laid out for x86-64). Records have
//! only grown at their ends, so that the oldest layout is a prefix of all later ones. `since` is the first version with a
//! field; in older versions the field is not read.

use std::fmt;

/// Result of `cuptiGetVersion`: 22 to 28 for CUDA 12.4 to 12.9, 130000 for 13.0, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32);

impl Version {
    /// The oldest version with known records: CUDA 12.4.
    pub const OLDEST: Self = Self(22);
    /// The newest version with known records: CUDA 13.5. Newer versions are read like this one, because records only grow
    /// at their ends.
    pub const NEWEST: Self = Self(130_599);
    /// First version that accepts the refusal of a buffer: CUDA 12.9.
    pub(crate) const MAY_REFUSE_BUFFERS: Self = Self(27);

    /// The CUDA release, such as `12.4`.
    pub fn release(self) -> Option<String> {
        match self.0 {
            22 => Some("12.4".into()),
            23 => Some("12.5".into()),
            24 => Some("12.6".into()),
            26 => Some("12.8".into()),
            27 | 28 => Some("12.9".into()),
            130_000.. => Some(format!("{}.{}", self.0 / 10_000, self.0 / 100 % 100)),
            _ => None,
        }
    }
}

impl fmt::Display for Version {
    /// `130001 (CUDA 13.0)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.release() {
            Some(release) => write!(f, "{} (CUDA {release})", self.0),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Size of a record from a version on, and its name in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// First version.
    pub since: Version,
    /// Size in bytes.
    pub bytes: usize,
    /// `CUpti_Activity…`, without that prefix.
    pub name: &'static str,
}

/// Position of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name of the struct field.
    pub name: &'static str,
    /// Offset from the start of the record in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// First version with the field.
    pub since: Version,
}

/// A kind of record.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Values of `CUpti_ActivityKind` with this layout.
    pub kinds: &'static [u32],
    /// Sizes, oldest first.
    pub sizes: &'static [Size],
    /// Fields that are read.
    pub fields: &'static [Field],
}

impl Layout {
    /// Size in a version; `None` before the oldest one.
    pub fn size(&self, version: Version) -> Option<Size> {
        self.sizes.iter().rev().find(|size| size.since <= version).copied()
    }

    /// Size in the oldest version.
    pub fn prefix_bytes(&self) -> usize {
        self.sizes.first().map_or(0, |size| size.bytes)
    }
}

/// A number in a record, in native byte order.
pub(crate) trait Number: Sized {
    const BYTES: usize;
    fn read(bytes: &[u8], offset: usize) -> Option<Self>;
}

macro_rules! numbers {
    ($($type:ty),+) => {$(
        impl Number for $type {
            const BYTES: usize = size_of::<$type>();

            #[inline]
            fn read(bytes: &[u8], offset: usize) -> Option<Self> {
                let bytes = bytes.get(offset..)?.first_chunk()?;
                Some(<$type>::from_ne_bytes(*bytes))
            }
        }
    )+};
}

numbers!(u8, u16, u32, u64, i32, i64);

impl Number for [u8; 16] {
    const BYTES: usize = 16;

    fn read(bytes: &[u8], offset: usize) -> Option<Self> {
        bytes.get(offset..)?.first_chunk().copied()
    }
}

/// Declares records: for each the struct and its layout. A field with `since` is an `Option`.
macro_rules! records {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident: $layout:ident, kinds [$($kind:literal),+], sizes [$($since:literal => $bytes:literal $cupti:literal),+] {
            $($field:ident: $type:ty = $offset:literal,)+
            $(; $($late:ident: $late_type:ty = $late_offset:literal since $late_since:literal,)+)?
        }
    )+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $(#[doc = concat!("`", stringify!($field), "` at byte ", stringify!($offset), ".")] pub $field: $type,)+
            $($(
                #[doc = concat!("`", stringify!($late), "` at byte ", stringify!($late_offset), ", since version ",
                    stringify!($late_since), ".")]
                pub $late: Option<$late_type>,
            )+)?
        }

        #[doc = concat!("Layout of [`", stringify!($name), "`].")]
        pub const $layout: Layout = Layout {
            kinds: &[$($kind),+],
            sizes: &[$(Size { since: Version($since), bytes: $bytes, name: $cupti }),+],
            fields: &[
                $(Field {
                    name: stringify!($field),
                    offset: $offset,
                    bytes: <$type as Number>::BYTES,
                    since: Version::OLDEST,
                },)+
                $($(Field {
                    name: stringify!($late),
                    offset: $late_offset,
                    bytes: <$late_type as Number>::BYTES,
                    since: Version($late_since),
                },)+)?
            ],
        };

        impl $name {
            /// Returns `None` if `bytes` end before a field that every version has.
            pub(crate) fn read(bytes: &[u8], version: Version) -> Option<Self> {
                // Records without later fields do not use it.
                let _ = version;
                Some(Self {
                    $($field: Number::read(bytes, $offset)?,)+
                    $($(
                        $late: if version >= Version($late_since) { Number::read(bytes, $late_offset) } else { None },
                    )+)?
                })
            }
        }
    )+

        /// Layouts of all records that are read.
        pub const LAYOUTS: &[&Layout] = &[$(&$layout),+];
    };
}

records! {
    /// A kernel.
    Kernel: KERNEL, kinds [3, 10], sizes [
        22 => 208 "Kernel9", 130_000 => 216 "Kernel10", 130_100 => 224 "Kernel11", 130_300 => 232 "Kernel12",
        130_400 => 248 "Kernel13"
    ] {
        registers_per_thread: u16 = 6,
        start: u64 = 16,
        end: u64 = 24,
        device_id: u32 = 40,
        context_id: u32 = 44,
        stream_id: u32 = 48,
        grid_x: i32 = 52,
        grid_y: i32 = 56,
        grid_z: i32 = 60,
        block_x: i32 = 64,
        block_y: i32 = 68,
        block_z: i32 = 72,
        static_shared_memory: i32 = 76,
        dynamic_shared_memory: i32 = 80,
        correlation_id: u32 = 92,
        name: u64 = 104,
        graph_node_id: u64 = 144,
        graph_id: u32 = 156,
        cluster_x: u32 = 176,
        cluster_y: u32 = 180,
        cluster_z: u32 = 184,
        ;
        is_device_launched: u8 = 208 since 130_000,
        priority: i32 = 216 since 130_100,
    }

    /// A copy within a device, or between a device and the host.
    Memcpy: MEMCPY, kinds [1], sizes [22 => 88 "Memcpy5", 26 => 96 "Memcpy6", 130_400 => 112 "Memcpy7"] {
        copy_kind: u8 = 4,
        src_kind: u8 = 5,
        dst_kind: u8 = 6,
        flags: u8 = 7,
        bytes: u64 = 8,
        start: u64 = 16,
        end: u64 = 24,
        device_id: u32 = 32,
        context_id: u32 = 36,
        stream_id: u32 = 40,
        correlation_id: u32 = 44,
        graph_node_id: u64 = 64,
        graph_id: u32 = 72,
        ;
        copy_count: u64 = 88 since 26,
    }

    /// A copy between two devices.
    PeerMemcpy: PEER_MEMCPY, kinds [22], sizes [22 => 96 "MemcpyPtoP4"] {
        copy_kind: u8 = 4,
        src_kind: u8 = 5,
        dst_kind: u8 = 6,
        flags: u8 = 7,
        bytes: u64 = 8,
        start: u64 = 16,
        end: u64 = 24,
        device_id: u32 = 32,
        context_id: u32 = 36,
        stream_id: u32 = 40,
        src_device_id: u32 = 44,
        dst_device_id: u32 = 52,
        correlation_id: u32 = 60,
        graph_node_id: u64 = 72,
        graph_id: u32 = 80,
    }

    /// A memset.
    Memset: MEMSET, kinds [2], sizes [22 => 88 "Memset4", 130_400 => 104 "Memset5"] {
        value: u32 = 4,
        bytes: u64 = 8,
        start: u64 = 16,
        end: u64 = 24,
        device_id: u32 = 32,
        context_id: u32 = 36,
        stream_id: u32 = 40,
        correlation_id: u32 = 44,
        flags: u16 = 48,
        memory_kind: u16 = 50,
        graph_node_id: u64 = 64,
        graph_id: u32 = 72,
    }

    /// A call of the driver (kind 4) or the runtime (kind 5).
    Api: API, kinds [4, 5], sizes [22 => 40 "API"] {
        kind: u32 = 0,
        callback_id: u32 = 4,
        start: u64 = 8,
        end: u64 = 16,
        process_id: u32 = 24,
        thread_id: u32 = 28,
        correlation_id: u32 = 32,
        return_value: u32 = 36,
    }

    /// The external id that a thread had pushed before a call.
    ExternalCorrelation: EXTERNAL_CORRELATION, kinds [39], sizes [22 => 24 "ExternalCorrelation"] {
        external_kind: u32 = 4,
        external_id: u64 = 8,
        correlation_id: u32 = 16,
    }

    /// Overhead of CUPTI or the driver.
    Overhead: OVERHEAD, kinds [17], sizes [22 => 56 "Overhead3"] {
        overhead_kind: u32 = 4,
        object_kind: u32 = 8,
        process_id: u32 = 12,
        thread_id: u32 = 16,
        start: u64 = 24,
        end: u64 = 32,
        correlation_id: u32 = 40,
    }

    /// A synchronization of the host or of a stream.
    Synchronization: SYNCHRONIZATION, kinds [38], sizes [22 => 40 "Synchronization", 26 => 56 "Synchronization2"] {
        sync_kind: u32 = 4,
        start: u64 = 8,
        end: u64 = 16,
        correlation_id: u32 = 24,
        context_id: u32 = 28,
        stream_id: u32 = 32,
        event_id: u32 = 36,
        ;
        return_value: u32 = 48 since 26,
    }

    /// An instantaneous NVTX marker, or one end of an NVTX range.
    Marker: MARKER, kinds [12], sizes [22 => 56 "Marker2"] {
        flags: u32 = 4,
        timestamp: u64 = 8,
        id: u32 = 16,
        object_kind: u32 = 20,
        process_id: u32 = 24,
        thread_id: u32 = 28,
        name: u64 = 40,
        domain: u64 = 48,
    }

    /// Colour, category and payload of a marker.
    MarkerData: MARKER_DATA, kinds [13], sizes [22 => 32 "MarkerData", 130_000 => 40 "MarkerData2"] {
        flags: u32 = 4,
        id: u32 = 8,
        payload_kind: u32 = 12,
        payload: u64 = 16,
        color: u32 = 24,
        category: u32 = 28,
    }

    /// An allocation or a release.
    Memory: MEMORY, kinds [49], sizes [22 => 120 "Memory3", 24 => 128 "Memory4"] {
        operation: u32 = 4,
        memory_kind: u32 = 8,
        correlation_id: u32 = 12,
        address: u64 = 16,
        bytes: u64 = 24,
        timestamp: u64 = 32,
        process_id: u32 = 48,
        device_id: u32 = 52,
        context_id: u32 = 56,
        stream_id: u32 = 60,
        name: u64 = 64,
    }

    /// A device.
    Device: DEVICE, kinds [8], sizes [22 => 184 "Device5", 130_200 => 192 "Device6"] {
        memory_bandwidth_kbs: u64 = 8,
        memory_bytes: u64 = 16,
        threads_per_warp: u32 = 32,
        core_clock_khz: u32 = 36,
        multiprocessors: u32 = 44,
        warps_per_multiprocessor: u32 = 52,
        blocks_per_multiprocessor: u32 = 56,
        shared_memory_per_multiprocessor: u32 = 60,
        registers_per_multiprocessor: u32 = 64,
        capability_major: u32 = 104,
        capability_minor: u32 = 108,
        id: u32 = 112,
        uuid: [u8; 16] = 120,
        name: u64 = 136,
        is_mig_enabled: u8 = 145,
        mig_uuid: [u8; 16] = 160,
    }

    /// A context.
    Context: CONTEXT, kinds [9], sizes [22 => 24 "Context2", 23 => 32 "Context3", 130_100 => 40 "Context4"] {
        context_id: u32 = 4,
        device_id: u32 = 8,
        null_stream_id: u16 = 14,
    }

    /// A stream.
    Stream: STREAM, kinds [37], sizes [22 => 24 "Stream"] {
        context_id: u32 = 4,
        stream_id: u32 = 8,
        priority: u32 = 12,
    }

    /// An NVTX name of a thread, a device, a context or a stream.
    Name: NAME, kinds [11], sizes [22 => 32 "Name"] {
        object_kind: u32 = 4,
        object_id: u32 = 8,
        name: u64 = 24,
    }
}
