//! The iptables and ip6tables programs, for who needs their backend.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::owner::Owner;
use crate::skel::Failure;

/// Where the locks of [`take_turns`] are, and how many.
const LOCKS: &str = "/run/keelson-cni";
const LOCK_FILES: u8 = 64;
/// How often a chain that is busy is tried, and how much longer each pause is than the one before.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(5);

/// One of the two programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Iptables {
    V4,
    V6,
}

/// How a command ended that may fail for want of what it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The chain, rule or table is not there.
    Missing,
}

impl Iptables {
    pub fn of(addr: IpAddr) -> Self {
        if addr.is_ipv4() { Iptables::V4 } else { Iptables::V6 }
    }

    pub fn program(self) -> &'static str {
        match self {
            Iptables::V4 => "iptables",
            Iptables::V6 => "ip6tables",
        }
    }

    /// Whether the program is there and the kernel has the nat table for it.
    pub fn is_usable(self) -> bool {
        self.nat(&["-S", "OUTPUT"]).is_ok_and(|o| o == Outcome::Done)
    }

    /// Runs the program on the nat table, waiting for its lock.
    pub fn nat(self, args: &[&str]) -> Result<Outcome, Failure> {
        self.output("nat", args).map(|(outcome, _)| outcome)
    }

    /// Makes a chain unless it is there.
    pub fn ensure_chain(self, chain: &str) -> Result<(), Failure> {
        if self.nat(&["-S", chain, "1"])? == Outcome::Missing {
            // Somebody else may have made it meanwhile; then the second look finds it.
            if self.nat(&["-N", chain]).is_err() && self.nat(&["-S", chain, "1"])? == Outcome::Missing {
                return Err(Failure::internal(format!("{} cannot create the chain {chain}", self.program())));
            }
        }
        Ok(())
    }

    /// Adds a rule unless it is there: at the chain's end, or in front of all others.
    pub fn ensure_rule(self, chain: &str, rule: &[&str], in_front: bool) -> Result<(), Failure> {
        if self.has_rule(chain, rule)? {
            return Ok(());
        }
        let verb: &[&str] = if in_front { &["-I", chain, "1"] } else { &["-A", chain] };
        match self.nat(&[verb, rule].concat())? {
            Outcome::Done => Ok(()),
            Outcome::Missing => {
                Err(Failure::internal(format!("{} cannot add {rule:?} to {chain}", self.program())))
            }
        }
    }

    pub fn has_rule(self, chain: &str, rule: &[&str]) -> Result<bool, Failure> {
        Ok(self.nat(&[&["-C", chain], rule].concat())? == Outcome::Done)
    }

    /// The rules of a chain as the program would take them, or nothing when there is no such chain.
    pub fn rules(self, chain: &str) -> Result<Vec<String>, Failure> {
        let (_, text) = self.output("nat", &["-S", chain])?;
        Ok(text.lines().filter(|l| l.starts_with("-A ")).map(str::to_owned).collect())
    }

    /// Adds a rule to the raw table unless it is there.
    pub fn ensure_raw_rule(self, chain: &str, rule: &[&str]) -> Result<(), Failure> {
        let run = |verb: &[&str]| self.output("raw", &[verb, rule].concat()).map(|(outcome, _)| outcome);
        if run(&["-C", chain])? == Outcome::Missing {
            run(&["-A", chain])?;
        }
        Ok(())
    }

    /// Removes a chain with all its rules, and the rules elsewhere that lead to it. Another program may be adding one just
    /// then; then all of it is looked for again.
    pub fn remove_chain(self, chain: &str, entries: &[&str]) -> Result<(), Failure> {
        let mut attempt = 1;
        loop {
            match self.try_remove_chain(chain, entries) {
                Err(failure) if attempt < ATTEMPTS && is_busy(&failure) => {
                    std::thread::sleep(PAUSE * attempt);
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    fn try_remove_chain(self, chain: &str, entries: &[&str]) -> Result<(), Failure> {
        if self.nat(&["-S", chain, "1"])? == Outcome::Missing {
            return Ok(());
        }
        for entry in entries {
            for rule in self.rules(entry)? {
                let words = split(&rule);
                let leads_here = words.windows(2).any(|w| (w[0] == "-j" || w[0] == "-g") && w[1] == chain);
                if leads_here {
                    let words: Vec<&str> = words.iter().skip(2).map(String::as_str).collect();
                    self.nat(&[&["-D", entry], words.as_slice()].concat())?;
                }
            }
        }
        self.nat(&["-F", chain])?;
        self.nat(&["-X", chain]).map(drop)
    }

    fn output(self, table: &str, args: &[&str]) -> Result<(Outcome, String), Failure> {
        let program = self.program();
        let output = Command::new(program).args(["-w", "-t", table]).args(args).output().map_err(|e| {
            Failure::internal(format!("cannot run {program}: {e}; the iptables backend needs it"))
        })?;
        if output.status.success() {
            return Ok((Outcome::Done, String::from_utf8_lossy(&output.stdout).into_owned()));
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        // Looking fails with 1 for what is not there, in words that differ from version to version.
        let looked = matches!(args.first(), Some(&("-C" | "-S"))) && output.status.code() == Some(1);
        let removed = matches!(args.first(), Some(&("-C" | "-D" | "-F" | "-X")));
        let missing = ["No chain/target/match by that name", "does a matching rule exist", "does not exist"];
        match looked || (removed && missing.iter().any(|m| said.contains(m))) {
            true => Ok((Outcome::Missing, String::new())),
            false => {
                Err(Failure::internal(format!("{program} -t {table} {} failed: {said}", args.join(" "))))
            }
        }
    }
}

/// The kernel's and the programs' words for a rule set that somebody else is changing, or a chain that is still led to.
fn is_busy(failure: &Failure) -> bool {
    ["Device or resource busy", "Resource temporarily unavailable", "Too many links"]
        .iter()
        .any(|words| failure.msg.contains(words))
}

/// Waits for programs that an earlier call for the same container started and did not live to wait for, and keeps later
/// calls waiting for those of this one. A plugin that is killed leaves its iptables program running: without this, that
/// one adds its chain after DEL has looked for it.
///
/// The lock is held by the open file, which programs started meanwhile share, until the last of them is gone. It is one
/// of a few files, chosen by the owner; two owners that share one take turns. Where there is no place for them, it is
/// done without.
pub fn take_turns(owner: &Owner) -> Option<OwnedFd> {
    let _ = std::fs::create_dir(LOCKS);
    let path = format!("{LOCKS}/iptables.{}", owner.bucket(LOCK_FILES));
    // Without CLOEXEC, so that programs inherit it.
    let flags = OFlags::RDONLY | OFlags::CREATE;
    let file = fs::open(path, flags, Mode::from_raw_mode(0o600)).ok()?;
    loop {
        match fs::flock(&file, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            locked => return locked.ok().map(|()| file),
        }
    }
}

/// Splits a rule as a shell would, for the quoting that iptables -S uses.
fn split(rule: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let (mut quoted, mut escaped, mut begun) = (false, false, false);
    for c in rule.chars() {
        match c {
            _ if escaped => {
                word.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => {
                quoted = !quoted;
                begun = true;
            }
            ' ' if !quoted => {
                if begun || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            _ => word.push(c),
        }
    }
    if begun || !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_split_with_their_quotes_undone() {
        let rule =
            r#"-A POSTROUTING -s 10.1.2.3/32 -m comment --comment "name: \"net\" id: \"x y\"" -j CNI-abc"#;
        let words = split(rule);
        assert_eq!(words[7], r#"name: "net" id: "x y""#);
        assert_eq!(words.last().map(String::as_str), Some("CNI-abc"));
        assert_eq!(split(r#"a "" b"#), ["a", "", "b"]);
    }
}
