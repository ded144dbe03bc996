//! /logs/?query=...: logs of services and files of the machine, asked for by name.

use jiff::Timestamp;

use super::query::Query;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogQuery {
    /// A file beneath the machine's log directory, part by part.
    File(Vec<String>),
    Services {
        names: Vec<String>,
        options: Options,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub tail_lines: Option<u32>,
    /// 0 is this boot, -1 the one before.
    pub boot: Option<i32>,
    pub pattern: Option<String>,
}

const MOST_SERVICES: usize = 4;
const MOST_LINES: u32 = 100_000;
const LONGEST_NAME: usize = 256;

/// None when the request asks for no query at all.
pub fn log_query(query: &Query) -> Result<Option<LogQuery>, String> {
    const OPTIONS: [&str; 5] = ["sinceTime", "untilTime", "tailLines", "boot", "pattern"];
    let asked: Vec<&str> = query.all("query").collect();
    let options = options(query)?;
    if asked.is_empty() {
        return match query.names().find(|name| OPTIONS.contains(name)) {
            Some(name) => Err(format!("{name} without query: name a service or a file")),
            None => Ok(None),
        };
    }
    let (files, services): (Vec<_>, Vec<_>) =
        asked.into_iter().filter(|q| !q.trim().is_empty()).partition(|q| q.contains(['/', '\\']));
    match (files.as_slice(), services.as_slice()) {
        ([], []) => Err("query: may not be empty".into()),
        ([file], []) if options == Options::default() => Ok(Some(LogQuery::File(file_parts(file)?))),
        ([_], []) => Err("query: a file takes no other parameters".into()),
        ([], names) => {
            if names.len() > MOST_SERVICES {
                return Err(format!("query: more than {MOST_SERVICES} services"));
            }
            if let Some(bad) = names.iter().find(|name| !is_safe(name)) {
                return Err(format!("query: {bad:?} cannot be the name of a service"));
            }
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            Ok(Some(LogQuery::Services { names, options }))
        }
        ([_, ..], []) => Err("query: one file at a time".into()),
        ([_, ..], [_, ..]) => Err("query: either a file or services".into()),
    }
}

/// What journalctl is run with. Everything is one argument with its name before it, so that no value can become an option.
pub fn journal_arguments(names: &[String], options: &Options) -> Vec<String> {
    let time = |t: &Timestamp| t.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
    let mut arguments = vec!["--utc".to_owned(), "--no-pager".into(), "--output=short-precise".into()];
    arguments.extend(options.since.as_ref().map(|t| format!("--since={}", time(t))));
    arguments.extend(options.until.as_ref().map(|t| format!("--until={}", time(t))));
    arguments.extend(options.tail_lines.map(|n| format!("--lines={n}")));
    arguments.extend(names.iter().map(|name| format!("--unit={name}")));
    arguments.extend(options.pattern.as_ref().map(|p| format!("--grep={p}")));
    arguments.extend(options.boot.map(|n| format!("--boot={n}")));
    arguments
}

/// Where a service may have its own file, if it does not write to the journal.
pub fn files_of(service: &str) -> [Vec<String>; 3] {
    let log = format!("{service}.log");
    [vec![service.to_owned()], vec![log.clone()], vec![service.to_owned(), log]]
}

fn options(query: &Query) -> Result<Options, String> {
    let time = |name: &str| match query.get(name).filter(|v| !v.is_empty()) {
        Some(text) => {
            text.parse::<Timestamp>().map(Some).map_err(|_| format!("{name}: {text:?} is no RFC 3339 time"))
        }
        None => Ok(None),
    };
    let number = |name: &str| match query.get(name).filter(|v| !v.is_empty()) {
        Some(text) => text.parse::<i32>().map(Some).map_err(|_| format!("{name}: {text:?} is no number")),
        None => Ok(None),
    };
    let tail_lines = match number("tailLines")? {
        Some(n) => match u32::try_from(n) {
            Ok(n) if n <= MOST_LINES => Some(n),
            _ => return Err(format!("tailLines: {n} must be from 0 to {MOST_LINES}")),
        },
        None => None,
    };
    let boot = number("boot")?;
    if boot.is_some_and(|n| n > 0) {
        return Err("boot: must be 0 for this boot, or less for those before".into());
    }
    let (since, until) = (time("sinceTime")?, time("untilTime")?);
    if let (Some(since), Some(until)) = (since, until)
        && since > until
    {
        return Err("untilTime: must be after sinceTime".into());
    }
    let pattern = query.get("pattern").filter(|p| !p.is_empty());
    if pattern.is_some_and(|p| p.len() > LONGEST_NAME || p.contains('\0')) {
        return Err(format!("pattern: longer than {LONGEST_NAME} bytes, or with a NUL"));
    }
    Ok(Options { since, until, tail_lines, boot, pattern: pattern.map(Into::into) })
}

fn file_parts(file: &str) -> Result<Vec<String>, String> {
    let parts: Vec<&str> = file.strip_prefix('/').unwrap_or(file).split('/').collect();
    if parts.iter().any(|p| matches!(*p, "" | "." | "..") || p.contains(['\\', '\0'])) {
        return Err(format!("query: {file:?} is no file beneath the log directory"));
    }
    Ok(parts.into_iter().map(Into::into).collect())
}

fn is_safe(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.:@".contains(&b);
    name.len() <= LONGEST_NAME && !name.starts_with(['-', '.']) && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<LogQuery>, String> {
        log_query(&Query::parse(Some(text)).unwrap())
    }

    #[test]
    fn services_and_files_are_told_apart() {
        assert_eq!(read(""), Ok(None));
        assert_eq!(read("follow=1"), Ok(None));
        let services = |names: &[&str], options| {
            let names = names.iter().map(|n| (*n).to_owned()).collect();
            Ok(Some(LogQuery::Services { names, options }))
        };
        assert_eq!(read("query=kubelet"), services(&["kubelet"], Options::default()));
        let options = Options { tail_lines: Some(5), boot: Some(-1), ..Options::default() };
        assert_eq!(
            read("query=a&query=b@1.service&tailLines=5&boot=-1"),
            services(&["a", "b@1.service"], options)
        );
        assert_eq!(read("query=/a/b.log"), Ok(Some(LogQuery::File(vec!["a".into(), "b.log".into()]))));
    }

    #[test]
    fn nonsense_is_refused_with_its_name() {
        for (text, named) in [
            ("query=", "query"),
            ("query=+", "query"),
            ("query=--flush", "service"),
            ("query=a%3Bb", "service"),
            ("query=a&query=b&query=c&query=d&query=e", "services"),
            ("query=/../etc/shadow", "beneath"),
            ("query=a/../b", "beneath"),
            ("query=a%5Cb", "beneath"),
            ("query=/a&query=/b", "one file"),
            ("query=/a&query=b", "either"),
            ("query=/a&tailLines=5", "no other"),
            ("tailLines=5", "without query"),
            ("query=a&tailLines=100001", "tailLines"),
            ("query=a&tailLines=x", "tailLines"),
            ("query=a&boot=1", "boot"),
            ("query=a&sinceTime=yesterday", "sinceTime"),
            ("query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z", "untilTime"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn no_value_becomes_an_option_of_its_own() {
        let options = Options {
            since: Some("2026-01-02T03:04:05Z".parse().unwrap()),
            pattern: Some("--file=/etc/shadow".into()),
            tail_lines: Some(3),
            ..Options::default()
        };
        let arguments = journal_arguments(&["sshd".into()], &options);
        let expected = [
            "--utc",
            "--no-pager",
            "--output=short-precise",
            "--since=2026-01-02 03:04:05 UTC",
            "--lines=3",
            "--unit=sshd",
            "--grep=--file=/etc/shadow",
        ];
        assert_eq!(arguments, expected);
    }
}
