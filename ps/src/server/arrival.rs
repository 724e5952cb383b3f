//! The arrival of the body of a frame: its memory, its time, and its bytes of the [`Pool`].

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use super::pool::{Pool, Share};
use crate::wire::WireError;

/// The largest time of waiting for the bytes of one body. The time of waiting for room in the pool
/// is not a part of it.
const BODY_TIME: Duration = Duration::from_secs(30);

/// The time in which a body must grow by [`LEAST_BYTES`] while other frames wait for room.
const LOOK: Duration = Duration::from_secs(1);

/// The number of bytes by which a body must grow in [`LOOK`].
const LEAST_BYTES: usize = 64 << 10;

/// The number of bytes of a body that need no room in the pool before the body is whole.
const FREE_BYTES: usize = 64 << 10;

/// The number of bytes for which memory is reserved before any of them has arrived.
const FIRST_BYTES: usize = 1 << 20;

/// The largest number of bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// The reason for which a body has not arrived.
#[derive(Debug)]
pub(super) enum Trouble {
    Io(io::Error),
    Slow(WireError),
}

/// Reads a body of `bytes` bytes. Returns the body, and its bytes of the pool. Without a pool, the
/// caller has limited the number of bytes.
///
/// # Errors
/// Returns an error if the connection ends, or if the body arrives too slowly.
pub(super) async fn read_body(
    input: &mut (impl AsyncRead + Unpin),
    bytes: usize,
    pool: Option<&Arc<Pool>>,
) -> Result<(Vec<u8>, Option<Share>), Trouble> {
    let mut share = pool.filter(|_| bytes > FREE_BYTES).map(Pool::begin);
    let mut body: Vec<u8> = Vec::new();
    let (mut waited, mut looked, mut grown) = (Duration::ZERO, Duration::ZERO, 0);
    while body.len() < bytes {
        let rest = bytes - body.len();
        if body.len() == body.capacity() {
            // Memory grows with what has arrived. It is not filled with zeros before.
            body.reserve_exact(rest.min(body.len().max(FIRST_BYTES)));
        }
        let (began, before) = (Instant::now(), body.len());
        let mut piece = (&mut *input).take(rest.min(PIECE_BYTES) as u64);
        match timeout(LOOK, piece.read_buf(&mut body)).await {
            Ok(Ok(0)) => return Err(Trouble::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(Err(error)) => return Err(Trouble::Io(error)),
            Ok(Ok(_)) | Err(_) => {}
        }
        waited += began.elapsed();
        grown += body.len() - before;
        if waited >= BODY_TIME && body.len() < bytes {
            let text = "the body of a frame did not arrive within 30 s after its header";
            return Err(Trouble::Slow(WireError::new(text)));
        }
        if waited - looked >= LOOK {
            let is_in_the_way = share.is_some() && pool.is_some_and(|pool| pool.is_wanted());
            if is_in_the_way && grown < LEAST_BYTES && body.len() < bytes {
                let text = "the body of a frame arrives too slowly while other frames wait for \
                            memory; send it again over a faster connection";
                return Err(Trouble::Slow(WireError::new(text)));
            }
            (looked, grown) = (waited, 0);
        }
        if let Some(share) = &mut share
            && body.len() > FREE_BYTES
        {
            share.take(body.len() as u64 - share.bytes()).await;
        }
    }
    let share = match (pool, share) {
        (None, _) => None,
        (Some(_), Some(share)) => Some(share),
        (Some(pool), None) => {
            let mut share = pool.begin();
            share.take(bytes as u64).await;
            Some(share)
        }
    };
    Ok((body, share.map(Share::arrived)))
}
