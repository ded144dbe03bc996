//! CNI_ARGS: "K=V;K2=V2".

use super::failure::Failure;

/// Reads the values of the known keys, in their order. Unknown keys are an error unless IgnoreUnknown
/// says otherwise.
pub fn parse_args<const N: usize>(text: &str, known: [&str; N]) -> Result<[Option<String>; N], Failure> {
    let mut values = [const { None }; N];
    if text.is_empty() {
        return Ok(values);
    }
    let mut ignore_unknown = false;
    let mut unknown = Vec::new();
    for pair in text.split(';') {
        let Some((key, value)) = pair.split_once('=').filter(|(_, value)| !value.contains('=')) else {
            return Err(Failure::environment(format!(
                "CNI_ARGS: {pair:?} is not a pair such as \"KEY=value\""
            )));
        };
        if key == "IgnoreUnknown" {
            ignore_unknown = match value.to_ascii_lowercase().as_str() {
                "1" | "true" => true,
                "0" | "false" => false,
                _ => {
                    return Err(Failure::environment(format!(
                        "CNI_ARGS: IgnoreUnknown must be 1, 0, true or false, not {value:?}"
                    )));
                }
            };
        } else if let Some(at) = known.iter().position(|k| *k == key) {
            values[at] = Some(value.to_owned());
        } else {
            unknown.push(pair);
        }
    }
    if !unknown.is_empty() && !ignore_unknown {
        return Err(Failure::environment(format!(
            "CNI_ARGS: unknown arguments {unknown:?}; add IgnoreUnknown=1 to let them pass"
        )));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_as_runtimes_write_them() {
        let kubernetes = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;IP=10.1.2.3";
        for (name, text, expected) in [
            ("nothing given", "", Ok(None)),
            ("the key alone", "IP=10.1.2.3", Ok(Some("10.1.2.3"))),
            ("an empty value", "IP=", Ok(Some(""))),
            ("the last of two wins", "IP=a;IP=b", Ok(Some("b"))),
            ("among a pod's arguments", kubernetes, Ok(Some("10.1.2.3"))),
            ("ignoring is not a matter of order", "X=1;IgnoreUnknown=TRUE", Ok(None)),
            ("unknown key", "X=1", Err(())),
            ("unknown key, ignoring turned off", "X=1;IgnoreUnknown=0", Err(())),
            ("no equals sign", "IP", Err(())),
            ("two equals signs", "IP=1=2", Err(())),
            ("trailing semicolon", "IP=1;", Err(())),
            ("nonsense for a boolean", "IgnoreUnknown=maybe", Err(())),
        ] {
            let got = parse_args(text, ["IP"]).map(|[ip]| ip).map_err(|_| ());
            assert_eq!(got, expected.map(|v| v.map(str::to_owned)), "{name}");
        }
    }
}
