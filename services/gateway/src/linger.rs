//! Reads what nobody wants. A connection that is closed before its client sent everything is reset, and with it goes the answer
//! that says why: client libraries report a broken connection instead of a body that is too large.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::EXPECT;
use futures::StreamExt;
use tokio::time::timeout;

/// How long a client is listened to for nothing: 32 MiB at 130 Mbit/s.
const WAIT: Duration = Duration::from_secs(2);

/// Reads the rest of a body and forgets it: at most so many bytes, for at most two seconds. What is sent beyond them resets
/// the connection.
pub(crate) async fn discard(body: Body, bytes_max: usize) {
    let mut parts = body.into_data_stream();
    let mut left = bytes_max;
    let reading = async {
        while let Some(Ok(part)) = parts.next().await {
            let Some(rest) = left.checked_sub(part.len()) else { return };
            left = rest;
        }
    };
    if timeout(WAIT, reading).await.is_err() {
        tracing::debug!("a refused request is still being sent");
    }
}

/// The same for a request that is refused before anybody looks at its body, unless its client waits to be told to send it.
pub(crate) async fn discard_request(request: Request, bytes_max: usize) {
    if !request.headers().contains_key(EXPECT) {
        discard(request.into_body(), bytes_max).await;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::{Body, Bytes};
    use futures::stream::{StreamExt, iter};

    use super::discard;

    #[tokio::test]
    async fn a_body_is_read_to_its_end_or_to_the_bounds() {
        for (parts, bytes_max, expected) in [(10, 100, 10), (10, 45, 5), (0, 0, 0)] {
            let read = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&read);
            let part = move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Infallible>(Bytes::from_static(b"0123456789"))
            };
            discard(Body::from_stream(iter(0..parts).map(part)), bytes_max).await;
            assert_eq!(read.load(Ordering::Relaxed), expected);
        }
    }
}
