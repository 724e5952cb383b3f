//! The login of a client of Kafka by name and password (SASL PLAIN), before a broker that has none.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The numbers of the requests that a client sends before it is logged in.
const HANDSHAKE: i16 = 17;
const VERSIONS: i16 = 18;
const AUTHENTICATE: i16 = 36;
/// The codes of the errors of the protocol.
const UNSUPPORTED_MECHANISM: i16 = 33;
const FAILED: i16 = 58;
/// The largest number of bytes of a request before the login.
const LARGEST: usize = 1 << 20;

/// The name and the password that the login accepts.
#[derive(Clone, Debug)]
pub(super) struct Login {
    pub(super) name: String,
    pub(super) password: String,
}

/// Carries out the login of a client. Questions about the versions of requests go to the broker.
/// Returns whether the client may go on.
pub(super) async fn log_in(
    client: &mut (impl AsyncRead + AsyncWrite + Unpin),
    broker: &mut (impl AsyncRead + AsyncWrite + Unpin),
    login: &Login,
) -> io::Result<bool> {
    loop {
        let request = read_frame(client).await?;
        let number = i16::from_be_bytes(part(&request, 0)?);
        let correlation: [u8; 4] = part(&request, 4)?;
        // The name of the client follows, which may be absent (-1).
        let name_bytes = i16::from_be_bytes(part(&request, 8)?).max(0);
        let body = request.get(10 + name_bytes as usize..).unwrap_or_default();
        match number {
            VERSIONS => {
                write_frame(broker, &request).await?;
                let answer = read_frame(broker).await?;
                write_frame(client, &answer).await?;
            }
            HANDSHAKE => {
                let is_plain = body == b"\0\x05PLAIN";
                let error = if is_plain { 0 } else { UNSUPPORTED_MECHANISM };
                let known = b"\0\0\0\x01\0\x05PLAIN";
                let answer = [&correlation[..], &error.to_be_bytes(), known].concat();
                write_frame(client, &answer).await?;
            }
            AUTHENTICATE => {
                let Login { name, password } = login;
                let wanted = format!("\0{name}\0{password}");
                let is_right = body.get(4..) == Some(wanted.as_bytes());
                let (error, message) = if is_right { (0, "") } else { (FAILED, "no such login") };
                let version = i16::from_be_bytes(part(&request, 2)?);
                let lifetime: &[u8] = if version >= 1 { &[0; 8] } else { &[] };
                let answer = [
                    &correlation[..],
                    &i16::to_be_bytes(error),
                    &(message.len() as i16).to_be_bytes(),
                    message.as_bytes(),
                    &0_i32.to_be_bytes(),
                    lifetime,
                ]
                .concat();
                write_frame(client, &answer).await?;
                return Ok(is_right);
            }
            other => {
                let problem = format!("request {other} before the login");
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
            }
        }
    }
}

/// Returns `N` bytes of a request.
fn part<const N: usize>(request: &[u8], at: usize) -> io::Result<[u8; N]> {
    let bytes = request.get(at..at + N).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Reads a request or an answer, which begins with its length.
async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = usize::try_from(stream.read_i32().await?).unwrap_or(usize::MAX);
    if length > LARGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await?;
    Ok(frame)
}

async fn write_frame(stream: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> io::Result<()> {
    let length = i32::try_from(frame.len()).map_err(io::Error::other)?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(frame).await?;
    stream.flush().await
}
