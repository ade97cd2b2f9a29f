//! What the other members' clocks say: see "One bad member harms itself" in [`super`].

use super::terms::Peers;

/// The peers' vote on a clock that is `clock_offset_ms` off the registry's. `offsets`: those of
/// the peers, each with its role.
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
    // Also where all peers are of one role that is not the requester's: its names are as many
    // as it likes.
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

/// The median of sorted values; of the two in the middle of an even number, and all between,
/// the one that is nearest: half of all is no majority to be refused by.
fn nearest_median(sorted: &[i64], to: i64) -> Option<i64> {
    let low = sorted.len().checked_sub(1)? / 2;
    let high = sorted.len() / 2;
    Some(to.clamp(*sorted.get(low)?, *sorted.get(high)?))
}
