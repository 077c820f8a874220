-- A part of the scripts that grant: for how many ms the marker of the restart guard keeps this node
-- from voting, or nothing. It must have been there for `wanted` ms; '0': no marker is wanted.
local function kept_out(marker, wanted, ms)
  if wanted == '0' then
    return
  end
  -- Of the process that this one followed as a replica, the last; zeros if it never was one.
  local followed = string.match(redis.call('INFO', 'replication'), 'master_replid2:(%w*[1-9a-f]%w*)')
  followed = followed and '.' .. followed or ''
  local owner, since = string.match(redis.call('GET', marker) or '', '^(.*):(%d+)$')
  since = tonumber(since)
  if not since or since > ms or (string.match(owner, '%..*$') or '') ~= followed then
    -- Forgotten with everything else (FLUSHALL), written before the clock was set back, or come
    -- with the keys of another master.
    local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
    redis.call('SET', marker, run_id .. followed .. ':' .. string.format('%.0f', ms))
    since = ms
  end
  if ms - since < tonumber(wanted) then
    return since + wanted - ms
  end
end
