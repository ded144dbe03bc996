//! A lease: a file named after the address, holding its owner.

use crate::skel::Attachment;

/// Between the container's id and the interface's name in a lease file; the reference plugin's choice.
const LINE_BREAK: &str = "\r\n";

/// Who holds an address. Files of very old plugins hold the container's id alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseOwner {
    pub container: String,
    pub ifname: Option<String>,
}

/// What a lease file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lease {
    Held(LeaseOwner),
    /// The file is empty: its writer died between making and filling it, and told nobody the address.
    Unfinished,
}

impl LeaseOwner {
    pub fn of(at: &Attachment) -> Self {
        LeaseOwner { container: at.container.to_string(), ifname: Some(at.ifname.to_string()) }
    }

    /// The same container as very old plugins wrote it.
    pub fn without_ifname(&self) -> Self {
        LeaseOwner { container: self.container.clone(), ifname: None }
    }

    /// Whether this is that container's interface, as far as the file tells.
    pub fn is(&self, container: &str, ifname: &str) -> bool {
        self.container == container && self.ifname.as_deref().is_none_or(|own| own == ifname)
    }

    /// What is written into the file.
    pub fn content(&self) -> String {
        match &self.ifname {
            Some(ifname) => format!("{}{LINE_BREAK}{ifname}", self.container),
            None => self.container.clone(),
        }
    }
}

impl Lease {
    /// Reads a lease file's content; any text is some owner's.
    pub fn parse(content: &[u8]) -> Self {
        let text = String::from_utf8_lossy(content);
        let text = text.trim();
        if text.is_empty() {
            return Lease::Unfinished;
        }
        Lease::Held(match text.split_once(LINE_BREAK).or_else(|| text.split_once('\n')) {
            Some((container, ifname)) => {
                LeaseOwner { container: container.to_owned(), ifname: Some(ifname.trim().to_owned()) }
            }
            None => LeaseOwner { container: text.to_owned(), ifname: None },
        })
    }

    pub fn is_held_by(&self, owner: &LeaseOwner) -> bool {
        matches!(self, Lease::Held(holder) if holder == owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_files_of_all_times_are_understood() {
        let held = |container: &str, ifname: Option<&str>| {
            Lease::Held(LeaseOwner { container: container.into(), ifname: ifname.map(str::to_owned) })
        };
        for (name, content, expected) in [
            ("today's", "abc\r\neth0", held("abc", Some("eth0"))),
            ("with a line end added by hand", "abc\r\neth0\n", held("abc", Some("eth0"))),
            ("edited on another system", "abc\neth0\n", held("abc", Some("eth0"))),
            ("very old", "abc", held("abc", None)),
            ("empty", "", Lease::Unfinished),
            ("white space", " \r\n", Lease::Unfinished),
        ] {
            assert_eq!(Lease::parse(content.as_bytes()), expected, "{name}");
        }
        assert!(matches!(Lease::parse(&[0xff, 0xfe]), Lease::Held(_)));
    }

    #[test]
    fn an_owner_s_content_is_read_back_as_that_owner() {
        for ifname in [None, Some("eth0".to_owned())] {
            let owner = LeaseOwner { container: "abc".into(), ifname };
            assert_eq!(Lease::parse(owner.content().as_bytes()), Lease::Held(owner));
        }
    }
}
