//! How messages lie on the wire: little-endian, everything aligned to its size from the start of the message.

/// The flag of a message that no reply is to be sent to.
pub const NO_REPLY: u8 = 1;

pub const METHOD_CALL: u8 = 1;
pub const METHOD_RETURN: u8 = 2;
pub const ERROR: u8 = 3;
pub const SIGNAL: u8 = 4;

/// Whom a call is for.
pub struct Target<'a> {
    pub destination: &'a str,
    pub path: &'a str,
    pub interface: &'a str,
}

/// An argument of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Arg<'a> {
    Text(&'a str),
    Bool(bool),
    /// `a(sv)`: names and values.
    Properties(&'a [(&'a str, Value)]),
    /// `a(sa(sv))`, always empty: no auxiliary units are ever sent.
    NoUnits,
}

/// What a property may be.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Text(String),
    Bool(bool),
    U64(u64),
    Texts(Vec<String>),
}

#[derive(Debug, Default)]
pub struct DbusMessage {
    pub kind: u8,
    pub reply_to: u32,
    pub member: String,
    pub error: String,
    signature: String,
    body: Vec<u8>,
}

impl DbusMessage {
    /// None when the header cannot be read.
    pub fn decode(kind: u8, fields: &[u8], body: Vec<u8>) -> Option<Self> {
        let mut message = Self { kind, body, ..Self::default() };
        message.read_fields(fields)?;
        Some(message)
    }

    fn read_fields(&mut self, bytes: &[u8]) -> Option<()> {
        let mut reader = Reader { bytes, at: 0 };
        while reader.at < bytes.len() {
            reader.align(8);
            let code = reader.byte()?;
            let signature = reader.signature()?;
            match (code, signature.as_str()) {
                (3, "s") => self.member = reader.text()?,
                (4, "s") => self.error = reader.text()?,
                (5, "u") => self.reply_to = reader.u32()?,
                (8, "g") => self.signature = reader.signature()?,
                (_, "s" | "o") => drop(reader.text()?),
                (_, "g") => drop(reader.signature()?),
                (_, "u") => drop(reader.u32()?),
                _ => return None,
            }
        }
        Some(())
    }

    /// The texts in the body: strings and object paths. Only numbers may stand between them.
    pub fn texts(&self) -> Vec<String> {
        let mut reader = Reader { bytes: &self.body, at: 0 };
        let mut found = Vec::new();
        for kind in self.signature.chars() {
            let read = match kind {
                's' | 'o' => reader.text().map(|text| found.push(text)),
                'u' | 'i' | 'b' => reader.u32().map(|_| ()),
                _ => None,
            };
            if read.is_none() {
                break;
            }
        }
        found
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }
    fn take(&mut self, length: usize) -> Option<&[u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(taken)
    }
    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }
    fn u32(&mut self) -> Option<u32> {
        self.align(4);
        self.take(4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes)
    }
    fn text(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.byte().map(|_| text)
    }
    fn signature(&mut self) -> Option<String> {
        let length = self.byte()? as usize;
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.byte().map(|_| text)
    }
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }
    fn u32(&mut self, value: u32) {
        self.align(4);
        self.0.extend(value.to_le_bytes());
    }
    fn text(&mut self, text: &str) {
        self.u32(text.len() as u32);
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }
    fn signature(&mut self, text: &str) {
        self.0.push(text.len() as u8);
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }
    /// An array's length is that of its elements, without the padding before the first.
    fn array(&mut self, alignment: usize, elements: impl FnOnce(&mut Self)) {
        self.u32(0);
        let length_at = self.0.len() - 4;
        self.align(alignment);
        let start = self.0.len();
        elements(self);
        let length = (self.0.len() - start) as u32;
        self.0[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
    }
    fn variant(&mut self, value: &Value) {
        match value {
            Value::Text(text) => {
                self.signature("s");
                self.text(text);
            }
            Value::Bool(value) => {
                self.signature("b");
                self.u32((*value).into());
            }
            Value::U64(value) => {
                self.signature("t");
                self.align(8);
                self.0.extend(value.to_le_bytes());
            }
            Value::Texts(texts) => {
                self.signature("as");
                self.array(4, |w| texts.iter().for_each(|text| w.text(text)));
            }
        }
    }
}

pub fn encode_call(serial: u32, flags: u8, to: &Target<'_>, member: &str, args: &[Arg<'_>]) -> Vec<u8> {
    let mut body = Writer::default();
    let mut signature = String::new();
    for arg in args {
        match arg {
            Arg::Text(text) => {
                signature.push('s');
                body.text(text);
            }
            Arg::Bool(value) => {
                signature.push('b');
                body.u32((*value).into());
            }
            Arg::Properties(properties) => {
                signature.push_str("a(sv)");
                body.array(8, |w| {
                    for (name, value) in *properties {
                        w.align(8);
                        w.text(name);
                        w.variant(value);
                    }
                });
            }
            Arg::NoUnits => {
                signature.push_str("a(sa(sv))");
                body.array(8, |_| {});
            }
        }
    }
    let mut message = Writer(vec![b'l', METHOD_CALL, flags, 1]);
    message.u32(body.0.len() as u32);
    message.u32(serial);
    message.array(8, |w| {
        let fields = [(1, "o", to.path), (2, "s", to.interface), (3, "s", member), (6, "s", to.destination)];
        for (code, kind, text) in fields {
            w.align(8);
            w.0.push(code);
            w.signature(kind);
            w.text(text);
        }
        if !signature.is_empty() {
            w.align(8);
            w.0.push(8);
            w.signature("g");
            w.signature(&signature);
        }
    });
    message.align(8);
    message.0.extend(body.0);
    message.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_laid_out_as_the_specification_says() {
        let to = Target { destination: "d.d", path: "/p", interface: "i.i" };
        let properties = [("N", Value::U64(7)), ("T", Value::Texts(vec!["x".into()]))];
        let bytes =
            encode_call(1, 0, &to, "M", &[Arg::Text("u"), Arg::Properties(&properties), Arg::NoUnits]);
        let header: &[u8] = b"l\x01\0\x01\x48\0\0\0\x01\0\0\0\x55\0\0\0\
            \x01\x01o\0\x02\0\0\0/p\0\0\0\0\0\0\
            \x02\x01s\0\x03\0\0\0i.i\0\0\0\0\0\
            \x03\x01s\0\x01\0\0\0M\0\0\0\0\0\0\0\
            \x06\x01s\0\x03\0\0\0d.d\0\0\0\0\0\
            \x08\x01g\0\x0fsa(sv)a(sa(sv))\0\0\0\0";
        let body: &[u8] = b"\x01\0\0\0u\0\0\0\x2e\0\0\0\0\0\0\0\
            \x01\0\0\0N\0\x01t\0\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\
            \x01\0\0\0T\0\x02as\0\0\0\x06\0\0\0\x01\0\0\0x\0\0\0\
            \0\0\0\0\0\0\0\0";
        assert_eq!(bytes, [header, body].concat());
    }

    #[test]
    fn what_is_written_can_be_read() {
        let to = Target { destination: "d", path: "/p", interface: "i" };
        let bytes = encode_call(9, 0, &to, "Member", &[Arg::Text("one"), Arg::Bool(true), Arg::Text("two")]);
        let fields_length = u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")) as usize;
        let mut message = DbusMessage {
            body: bytes[(16 + fields_length).next_multiple_of(8)..].to_vec(),
            ..Default::default()
        };
        message.read_fields(&bytes[16..16 + fields_length]).expect("fields");
        assert_eq!(message.member, "Member");
        assert_eq!(message.signature, "sbs");
        assert_eq!(message.texts(), ["one", "two"]);
    }

    #[test]
    fn a_truncated_body_gives_what_is_there() {
        let message = DbusMessage {
            signature: "ss".into(),
            body: vec![1, 0, 0, 0, b'a', 0, 0, 0, 200, 0, 0, 0],
            ..Default::default()
        };
        assert_eq!(message.texts(), ["a"]);
    }
}
