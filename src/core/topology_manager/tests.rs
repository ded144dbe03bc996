use super::*;

fn mask<const N: usize>(nodes: [u32; N]) -> NumaMask {
    nodes.into_iter().collect()
}

fn hint<const N: usize>(nodes: [u32; N], preferred: bool) -> Hint {
    Hint { affinity: Some(mask(nodes)), preferred }
}

fn machine(nodes: u32) -> NumaNodes {
    NumaNodes { nodes: (0..nodes).collect(), distances: None }
}

#[test]
fn sets_of_nodes_come_in_the_order_of_their_size() {
    let all = NumaMask::all_of(&[2, 0, 1]);
    assert_eq!(
        all,
        [mask([0]), mask([1]), mask([2]), mask([0, 1]), mask([0, 2]), mask([1, 2]), mask([0, 1, 2])]
    );
}

#[test]
fn wishes_are_merged_where_they_agree() {
    let (zero, one, both) = (hint([0], true), hint([1], true), hint([0, 1], false));
    let one_of = |hints: &[Hint]| Wish::OneOf(hints.to_vec());
    let cases: &[(&str, &[Wish], [Merged; 3])] = &[
        (
            "no wish",
            &[Wish::Anywhere],
            [
                Merged { hint: hint([0, 1], true), admitted: true },
                Merged { hint: hint([0, 1], true), admitted: true },
                Merged { hint: Hint { affinity: None, preferred: true }, admitted: true },
            ],
        ),
        (
            "cannot be had",
            &[one_of(&[])],
            [
                Merged { hint: hint([0, 1], false), admitted: true },
                Merged { hint: hint([0, 1], false), admitted: false },
                Merged { hint: Hint { affinity: None, preferred: false }, admitted: false },
            ],
        ),
        (
            "they agree",
            &[one_of(&[zero, one, both]), one_of(&[one, both])],
            [
                Merged { hint: one, admitted: true },
                Merged { hint: one, admitted: true },
                Merged { hint: one, admitted: true },
            ],
        ),
        (
            "they do not",
            &[one_of(&[zero, both]), one_of(&[one, both])],
            [
                Merged { hint: hint([0], false), admitted: true },
                Merged { hint: hint([0], false), admitted: false },
                Merged { hint: Hint { affinity: None, preferred: false }, admitted: false },
            ],
        ),
        (
            "one is not enough",
            &[one_of(&[hint([0, 1], true)])],
            [
                Merged { hint: hint([0, 1], true), admitted: true },
                Merged { hint: hint([0, 1], true), admitted: true },
                Merged { hint: Hint { affinity: None, preferred: false }, admitted: false },
            ],
        ),
    ];
    for (what, wishes, expected) in cases {
        let policies = [Policy::BestEffort, Policy::Restricted, Policy::SingleNumaNode];
        for (policy, expected) in policies.into_iter().zip(expected) {
            assert_eq!(merge(policy, &machine(2), wishes), *expected, "{what}, {policy:?}");
        }
    }
}

#[test]
fn the_closest_nodes_are_taken_where_distance_counts() {
    let distances = [(0, vec![10, 40, 20]), (1, vec![40, 10, 40]), (2, vec![20, 40, 10])];
    let mut machine = machine(3);
    let wishes = [Wish::OneOf(vec![hint([0, 1], true), hint([0, 2], true), hint([1, 2], true)])];
    assert_eq!(merge(Policy::BestEffort, &machine, &wishes).hint, hint([0, 1], true));
    machine.distances = Some(distances.into_iter().collect());
    assert_eq!(merge(Policy::BestEffort, &machine, &wishes).hint, hint([0, 2], true));
}
