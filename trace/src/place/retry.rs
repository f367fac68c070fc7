//! Repeated requests to an object store.

use std::time::{Duration, Instant};

use super::reasons::may_pass;

/// Times that a request is repeated …
pub(super) const RETRIES: usize = 8;
/// … within this time.
pub(super) const RETRY_TIME: Duration = Duration::from_secs(90);
/// The pause before the second try; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Repeats a request whose answer ended early. The library repeats requests that were refused or lost, but not these.
pub(super) async fn repeated<T, F: Future<Output = Result<T, object_store::Error>>>(
    request: impl Fn() -> F,
) -> Result<T, object_store::Error> {
    let (begin, mut pause) = (Instant::now(), FIRST_PAUSE);
    for _ in 0..RETRIES {
        match request().await {
            Err(error) if may_pass(&error) && begin.elapsed() < RETRY_TIME => tokio::time::sleep(pause).await,
            answered => return answered,
        }
        pause *= 2;
    }
    request().await
}
