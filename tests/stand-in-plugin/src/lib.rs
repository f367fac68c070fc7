//! A stand-in for another NCCL profiler plugin, such as NVIDIA's inspector, of versions 3 to 5. It writes all calls in
//! their order to the file that `STAND_IN_PLUGIN` names.
//!
//! * `init CONTEXT`, `finalize CONTEXT`
//! * `start HANDLE TYPE PARENT CONTEXT`, `refuse TYPE`, `state HANDLE STATE`, `stop HANDLE`
//!
//! Its contexts and handles are numbers far from those of the recorder. Its mask has groups and collectives, their calls and
//! channels. It refuses every seventh event, like a plugin with an empty pool.

pub mod ffi;
