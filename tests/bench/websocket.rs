//! As much of WebSocket as an exec needs: short messages, each with the number of its channel in front.

use anyhow::{Result, bail};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Of a request that wants to become one.
pub const HEADERS: [(&str, &str); 5] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Protocol", "v4.channel.k8s.io"),
];

const BINARY: u8 = 0x82;
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
/// What a client sends is masked; with zeros it stays as it is.
const MASK: [u8; 4] = [0; 4];

/// To the standard input of the command.
pub async fn say(stream: &mut (impl AsyncWrite + Unpin), text: &[u8]) -> Result<()> {
    let length = u8::try_from(text.len() + 1).ok().filter(|n| *n < 126);
    let Some(length) = length else { bail!("{} bytes are too many for a short message", text.len()) };
    let message = [&[BINARY, 0x80 | length][..], &MASK, &[STDIN], text].concat();
    stream.write_all(&message).await?;
    Ok(stream.flush().await?)
}

/// The next that the command writes.
pub async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>> {
    loop {
        let (kind, length) = (stream.read_u8().await?, stream.read_u8().await?);
        if length > 125 {
            bail!("a long message came where a short one was expected");
        }
        let mut message = vec![0; length.into()];
        stream.read_exact(&mut message).await?;
        match message.split_first() {
            Some((&STDOUT, text)) if kind == BINARY && !text.is_empty() => return Ok(text.to_vec()),
            // Servers open every channel with an empty message.
            Some((_, [])) if kind == BINARY => {}
            _ => bail!("a message of kind {kind:#x} came instead of an echo: {message:?}"),
        }
    }
}
