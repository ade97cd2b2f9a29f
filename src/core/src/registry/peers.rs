//! Comparison with the other members' clocks: see "Misbehaving members" in [`super`].

use crate::lease::Peers;

/// The peers' vote on a clock that is off the registry's by `clock_offset_ms`. `offsets` has the
/// role and the offset of each peer.
pub fn vote(
    mut offsets: Vec<(Option<&[u8]>, i64)>,
    role_asking: &[u8],
    clock_offset_ms: i64,
) -> Peers {
    offsets.sort_unstable();
    let of_roles: Vec<i64> = offsets
        .chunk_by(|(role, _), (other, _)| role == other)
        .filter_map(|group| {
            let offsets: Vec<i64> = group.iter().map(|(_, offset)| *offset).collect();
            nearest_median(&offsets, clock_offset_ms)
        })
        .collect();
    // Also if all peers have one role, not the requester's: it can have any number of names.
    let is_requesters = |role: Option<&[u8]>| role == Some(role_asking);
    let by_role = of_roles.len() > 1 || offsets.iter().any(|(role, _)| !is_requesters(*role));
    let mut votes: Vec<i64> = if by_role {
        of_roles
    } else {
        offsets.iter().map(|(_, offset)| *offset).collect()
    };
    votes.sort_unstable();
    Peers {
        votes: u32::try_from(votes.len()).unwrap_or(u32::MAX),
        offset_ms: nearest_median(&votes, clock_offset_ms),
        by_role,
    }
}

/// The median of sorted values. With an even number, the value nearest to `to` between the middle
/// two: half of the votes is not a majority.
fn nearest_median(sorted: &[i64], to: i64) -> Option<i64> {
    let low = sorted.len().checked_sub(1)? / 2;
    let high = sorted.len() / 2;
    Some(to.clamp(*sorted.get(low)?, *sorted.get(high)?))
}
