//! Stands in for another profiler plugin of NCCL, such as NVIDIA's inspector, of versions 3 to 5: writes down what it is
//! told, in the order in which it is told, to the file that `STAND_IN_PLUGIN` names.
//!
//! * `init CONTEXT`, `finalize CONTEXT`
//! * `start HANDLE TYPE PARENT CONTEXT`, `refuse TYPE`, `state HANDLE STATE`, `stop HANDLE`
//!
//! Its contexts and handles are numbers far from those of the recorder. It asks for groups and collectives, their calls
//! and channels, and refuses every seventh event, as a plugin whose pool is empty does.

pub mod ffi;
