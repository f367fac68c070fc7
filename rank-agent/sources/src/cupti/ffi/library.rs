//! Finds libcupti and its functions at run time. Nothing is linked: without CUPTI, opening it returns an error.

use std::ffi::{OsStr, c_char, c_void};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::cupti::layout::Version;
use crate::cupti::settings::LIBRARY_VARIABLE;
use crate::error::Error;
use crate::installed;

/// `CUptiResult`, as a number, because a newer library may return an unknown value.
pub(crate) type Status = u32;
pub(crate) const SUCCESS: Status = 0;
/// Library of the NVIDIA driver.
const DRIVER: &str = "libcuda.so.1";

/// `CUpti_SubscriberHandle`.
pub(super) type Subscriber = *mut c_void;
/// `CUpti_CallbackFunc(userdata, domain, callback id, data)`.
pub(super) type Callback = extern "C" fn(*mut c_void, u32, u32, *const c_void);
/// `CUpti_BuffersCallbackRequestFunc(buffer, size, max records)`.
pub(super) type Request = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
/// `CUpti_BuffersCallbackCompleteFunc(context, stream, buffer, size, valid size)`.
pub(super) type Complete = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
/// `CUpti_TimestampCallbackFunc`.
pub(super) type Timestamp = extern "C" fn() -> u64;

/// `CUpti_SubscriberParams` as of CUDA 13.0.
#[repr(C)]
pub(super) struct SubscriberParams {
    pub(super) struct_size: usize,
    pub(super) name: *const c_char,
    pub(super) old_name: *mut c_char,
    pub(super) old_name_size: usize,
}

macro_rules! functions {
    (needed { $($name:ident($($arg:ty),*) = $symbol:literal,)+ } optional { $($late:ident($($late_arg:ty),*) = $late_symbol:literal,)+ }) => {
        /// The functions of the library.
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> Status,)+
            $(pub(super) $late: Option<unsafe extern "C" fn($($late_arg),*) -> Status>,)+
        }

        impl Functions {
            /// Looks up the functions. The error is the name of a missing one.
            fn of(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the signatures are those of CUPTI's headers, 12.4 to 13.5; the library is never unloaded.
                    $($name: *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }.map_err(|_| $symbol)?,)+
                    // SAFETY: as above.
                    $($late: unsafe { library.get(concat!($late_symbol, "\0").as_bytes()) }.ok().map(|found| *found),)+
                })
            }
        }
    };
}

functions! {
    needed {
        get_version(*mut u32) = "cuptiGetVersion",
        get_timestamp(*mut u64) = "cuptiGetTimestamp",
        get_result_string(Status, *mut *const c_char) = "cuptiGetResultString",
        get_callback_name(u32, u32, *mut *const c_char) = "cuptiGetCallbackName",
        subscribe(*mut Subscriber, Callback, *mut c_void) = "cuptiSubscribe",
        unsubscribe(Subscriber) = "cuptiUnsubscribe",
        enable_callback(u32, Subscriber, u32, u32) = "cuptiEnableCallback",
        register_callbacks(Request, Complete) = "cuptiActivityRegisterCallbacks",
        enable(u32) = "cuptiActivityEnable",
        disable(u32) = "cuptiActivityDisable",
        flush_all(u32) = "cuptiActivityFlushAll",
        get_next_record(*mut u8, usize, *mut *mut u8) = "cuptiActivityGetNextRecord",
        get_num_dropped_records(*mut c_void, u32, *mut usize) = "cuptiActivityGetNumDroppedRecords",
        push_external_id(u32, u64) = "cuptiActivityPushExternalCorrelationId",
        pop_external_id(u32, *mut u64) = "cuptiActivityPopExternalCorrelationId",
    }
    optional {
        register_timestamp(Timestamp) = "cuptiActivityRegisterTimestampCallback",
        set_attribute(u32, *mut usize, *mut c_void) = "cuptiActivitySetAttribute",
        set_thread_id_type(u32) = "cuptiSetThreadIdType",
        enable_driver_api(u32, u8) = "cuptiActivityEnableDriverApi",
        enable_runtime_api(u32, u8) = "cuptiActivityEnableRuntimeApi",
        subscribe_v2(*mut Subscriber, Callback, *mut c_void, *mut SubscriberParams) = "cuptiSubscribe_v2",
    }
}

/// A libcupti with known record layouts, loaded for the life of the process.
#[derive(Debug)]
pub(crate) struct Cupti {
    pub(super) functions: Functions,
    path: PathBuf,
    version: Version,
    /// Never unloaded: CUPTI keeps pointers to the callbacks, and these functions point into CUPTI.
    _library: std::mem::ManuallyDrop<Library>,
}

impl Cupti {
    /// Opens `library`, or the library that `$RANKSCOPE_CUPTI` names. Without either, it opens the first of
    /// [`candidates`] that exists, but only if the driver is installed: without a driver, CUPTI of 13.2 recurses for ever
    /// in its first function. A library that the user names needs no driver, because it may not be NVIDIA's.
    pub(crate) fn open(library: Option<&Path>) -> Result<Self, Error> {
        let chosen = library.map(Path::to_path_buf).or_else(|| std::env::var_os(LIBRARY_VARIABLE).map(PathBuf::from));
        let is_chosen = chosen.is_some();
        let candidates = chosen.map_or_else(candidates, |path| vec![path]);
        let found = loaded_already(&candidates).or_else(|| {
            candidates.iter().find_map(|path| Some((load(path.as_os_str(), RTLD_NOW | RTLD_LOCAL)?, path.clone())))
        });
        let Some((library, path)) = found else {
            return Err(Error::CuptiNotFound { searched: candidates, variable: LIBRARY_VARIABLE });
        };
        if !is_chosen && load(OsStr::new(DRIVER), RTLD_NOW | RTLD_LOCAL).is_none() {
            return Err(Error::CuptiWithoutDriver { library: path, driver: DRIVER });
        }
        let functions = Functions::of(&library)
            .map_err(|symbol| Error::CuptiTooOld { library: path.clone(), why: format!("it has no {symbol}") })?;
        let mut version = 0;
        // SAFETY: it writes one u32.
        let status = unsafe { (functions.get_version)(&raw mut version) };
        let version = Version(version);
        let cupti = Self { functions, path, version, _library: std::mem::ManuallyDrop::new(library) };
        cupti.check("cuptiGetVersion", status)?;
        if version < Version::OLDEST {
            return Err(Error::CuptiTooOld { library: cupti.path, why: format!("cuptiGetVersion says {version}") });
        }
        Ok(cupti)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }
}

fn load(name: &OsStr, flags: i32) -> Option<Library> {
    // SAFETY: loading runs the initialisers of NVIDIA's libcupti or of the library that the user chose instead; with
    // RTLD_NOLOAD no initialiser runs.
    unsafe { Library::open(Some(name), flags) }.ok()
}

/// The library that the process has already loaded. A second copy would have its own state and record nothing.
fn loaded_already(candidates: &[PathBuf]) -> Option<(Library, PathBuf)> {
    candidates.iter().find_map(|path| Some((load(path.as_os_str(), RTLD_NOW | libc::RTLD_NOLOAD)?, path.clone())))
}

/// Names for the loader (`LD_LIBRARY_PATH`, its cache), then the paths of the CUDA toolkit and of Python's wheels.
fn candidates() -> Vec<PathBuf> {
    const NAMES: [&str; 3] = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"];
    let of_toolkit = |cuda: PathBuf| [cuda.join("extras/CUPTI/lib64"), cuda.join("lib64")];
    let mut directories: Vec<PathBuf> = installed::toolkits().flat_map(of_toolkit).collect();
    directories.extend(installed::wheels(&["cu13/lib", "cuda_cupti/lib"]));
    let beside = directories.iter().flat_map(|directory| NAMES.iter().map(|name| directory.join(name)));
    NAMES.iter().map(PathBuf::from).chain(beside).collect()
}
