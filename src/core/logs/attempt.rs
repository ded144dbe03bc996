//! Which instance of a container a log file belongs to. A runtime that was wiped has forgotten how many instances there were;
//! their logs have not.

/// The number of the next instance: as planned, but none whose log is there already.
pub fn next_attempt<'a>(planned: u32, log_files: impl IntoIterator<Item = &'a str>) -> u32 {
    let after = log_files.into_iter().filter_map(attempt_of).map(|attempt| attempt + 1);
    after.max().unwrap_or(0).max(planned)
}

/// N.log, and what rotation makes of it: N.log.TIME, N.log.TIME.gz. Numbers that no restart count can reach are somebody else's.
pub fn attempt_of(file: &str) -> Option<u32> {
    let (number, rest) = file.split_once(".log")?;
    let own = rest.is_empty() || rest.starts_with('.');
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let attempt: i32 = number.parse().ok().filter(|n| own && digits && *n < i32::MAX)?;
    u32::try_from(attempt).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_there_is_not_written_into_by_another_instance() {
        for (name, planned, files, expected) in [
            ("nothing is there", 0, &[][..], 0),
            ("nothing is there, but the status counts", 4, &[], 4),
            ("one was there before", 0, &["0.log"], 1),
            ("the highest counts, not the last", 0, &["10.log", "9.log"], 11),
            ("what was planned is more", 7, &["2.log"], 7),
            ("only a rotated file is left", 0, &["3.log.20260102-030405.gz"], 4),
            ("names that are no instance's", 0, &["x.log", ".log", "5.logs", "5log", "-1.log", "+1.log"], 0),
            ("numbers beyond any count", 0, &["2147483647.log", "99999999999999999999.log"], 0),
        ] {
            assert_eq!(next_attempt(planned, files.iter().copied()), expected, "{name}");
        }
    }
}
