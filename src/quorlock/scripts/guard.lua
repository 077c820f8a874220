-- The restart guard's marker: since when this node has forgotten nothing, as far as we know.
-- KEYS[1] marker, `run_id:since in ms`; `run_id.replid2:since` of a process that was a replica
-- ARGV[1] run_id of this process  ARGV[2] what another process's marker is worth to it:
--   'nothing'; 'the same' (durable: it has all that the other one had);
--   'all' (born empty: it had nothing to forget, whatever is there or not)
-- returns for how many ms that is, by the node's own clock
-- errors  WRONGTYPE: the marker's key holds another type of data
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local marker = redis.call('GET', KEYS[1])
local owner, since = string.match(marker or '', '^(.+):(%d+)$')
since = tonumber(since)
-- Of the process that this one followed as a replica, the last; zeros if it never was one.
local followed = string.match(redis.call('INFO', 'replication'), 'master_replid2:(%w*[1-9a-f]%w*)')
local us = ARGV[1] .. (followed and '.' .. followed or '')
local run_id = string.match(owner or '', '^[^.]*')
if run_id == ARGV[1] and owner ~= us then
  -- It was a replica meanwhile: all its keys are another master's.
  since = nil
elseif run_id ~= ARGV[1] then
  if ARGV[2] == 'all' then
    since = 0
  elseif ARGV[2] == 'nothing' then
    since = nil
  end
end
if not since or since > ms then
  -- Never marked, or before the clock was set back.
  since = ms
end
local now = us .. ':' .. string.format('%.0f', since)
if now ~= marker then
  redis.call('SET', KEYS[1], now)
end
return ms - since
