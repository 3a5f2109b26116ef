//! Channels over WebSocket: a message starts with the number of its channel, as a byte, or as a digit before base64
//! (`k8s.io/apimachinery/pkg/util/httpstream/wsstream`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio_tungstenite::tungstenite::protocol::Message;

/// How the messages of a subprotocol are encoded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Binary,
    Base64,
}

impl Coding {
    pub(super) fn new(protocol: &str) -> Self {
        if protocol.contains("base64") { Self::Base64 } else { Self::Binary }
    }

    pub(super) fn write(self, channel: u8, data: &[u8]) -> Message {
        match self {
            Self::Binary => {
                let mut bytes = Vec::with_capacity(data.len() + 1);
                bytes.push(channel);
                bytes.extend_from_slice(data);
                Message::Binary(bytes.into())
            }
            Self::Base64 => {
                let digit = char::from(b'0'.saturating_add(channel));
                Message::Text(format!("{digit}{}", STANDARD.encode(data)).into())
            }
        }
    }

    /// Decodes the channel and the data of a message. `None` if it is empty or invalid.
    pub(super) fn read(self, message: Message) -> Option<(u8, Vec<u8>)> {
        match (self, message) {
            (_, Message::Binary(b)) => Some((*b.first()?, b.get(1..)?.to_vec())),
            (Self::Base64, Message::Text(t)) => {
                let bytes = t.as_bytes();
                let channel = bytes.first()?.checked_sub(b'0')?;
                Some((channel, STANDARD.decode(bytes.get(1..)?).ok()?))
            }
            (Self::Binary, Message::Text(t)) => Some((*t.as_bytes().first()?, t.as_bytes().get(1..)?.to_vec())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_their_channel() {
        for coding in [Coding::Binary, Coding::Base64] {
            for channel in [0, 1, 9, 10, 60] {
                let message = coding.write(channel, b"hi\n");
                assert_eq!(coding.read(message), Some((channel, b"hi\n".to_vec())));
            }
        }
        assert_eq!(Coding::Base64.write(1, b"hi"), Message::Text("1aGk=".into()));
        assert_eq!(Coding::Binary.read(Message::Binary(Vec::new().into())), None);
    }
}
